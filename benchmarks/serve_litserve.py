"""The model of benchmarks/serve.py behind LitServe, for an interpreter that has it: serve_litserve.py MODEL PORT."""

import sys

import litserve
import numpy as np
import onnxruntime


class PeerModel(litserve.LitAPI):
    """One thread of ONNX Runtime, as `shoal serve` gives it; batches of up to 32."""

    def setup(self, device: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])

    def decode_request(self, request: dict) -> np.ndarray:
        return np.array(request["inputs"][0]["data"], dtype=np.float32)

    def batch(self, inputs: list) -> np.ndarray:
        return np.stack(inputs)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.session.run(None, {"x": x})[0]

    def unbatch(self, output: np.ndarray) -> list:
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict:
        return {"outputs": output.tolist()}


if __name__ == "__main__":
    api = PeerModel(max_batch_size=32, batch_timeout=0.001)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="warning")
