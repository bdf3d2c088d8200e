"""The model of benchmarks/serve.py behind a real Triton with a Python model: serve_triton.py MODEL PORT.

For an interpreter that has nvidia-pytriton, which brings the server.
"""

import socket
import sys

import numpy as np
import onnxruntime
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


if __name__ == "__main__":
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])

    @batch
    def predict(x: np.ndarray) -> dict:
        return {"y": session.run(None, {"x": x})[0]}

    place = TritonConfig(
        http_address="127.0.0.1", http_port=int(sys.argv[2]), grpc_port=free_port(), metrics_port=free_port()
    )
    with Triton(config=place) as server:
        server.bind(
            "mlp", predict, inputs=[Tensor(name="x", shape=(784,), dtype=np.float32)],
            outputs=[Tensor(name="y", shape=(10,), dtype=np.float32)],
            config=ModelConfig(max_batch_size=32, batcher=DynamicBatcher()),
        )  # fmt: skip
        server.serve()
