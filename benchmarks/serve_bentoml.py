"""The model of benchmarks/serve.py behind BentoML, for an interpreter that has it: serve_bentoml.py MODEL PORT."""

import os
import sys
from pathlib import Path

import bentoml
import numpy as np
import onnxruntime

if __name__ == "__main__":
    place = Path(__file__)
    words = ["serve", f"{place.stem}:PeerModel", "--working-dir", str(place.parent)]
    os.environ["PEER_MODEL"] = sys.argv[1]
    program = str(Path(sys.executable).with_name("bentoml"))
    os.execv(program, [program, *words, "--host", "127.0.0.1", "--port", sys.argv[2]])


@bentoml.service(workers=1)
class PeerModel:
    """One thread of ONNX Runtime, as `shoal serve` gives it; batches of up to 32."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        model = os.environ["PEER_MODEL"]
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=10_000)
    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return self.session.run(None, {"x": inputs.astype(np.float32)})[0]
