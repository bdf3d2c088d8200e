"""The model of benchmarks/serve.py behind Ray Serve, for an interpreter that has it: serve_ray.py MODEL PORT."""

import sys
import threading

import numpy as np
import onnxruntime
import ray
from ray import serve


@serve.deployment(max_ongoing_requests=64)
class PeerModel:
    """One thread of ONNX Runtime, as `shoal serve` gives it; batches of up to 32."""

    def __init__(self, model: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
    async def predict(self, rows: list) -> list:
        return list(self.session.run(None, {"x": np.stack(rows)})[0])

    async def __call__(self, request) -> dict:
        sent = await request.json()
        found = await self.predict(np.array(sent["inputs"][0]["data"], dtype=np.float32))
        return {"outputs": found.tolist()}


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(PeerModel.bind(sys.argv[1]), route_prefix="/predict")
    threading.Event().wait()
