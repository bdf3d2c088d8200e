"""Small models, sources and clients for the tests of serving."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import onnx
import uvicorn
from onnx import TensorProto, helper, numpy_helper

from shoal.core.http_access import bind
from shoal.serve.app import ServeApp
from shoal.serve.core import ServingCore
from shoal.serve.core_settings import CoreSettings
from shoal.serve.loader import ObjectLoader, ServableLoader
from shoal.serve.server import ServerOptions, answer_requests, make_config
from shoal.serve.tensors import Tensors, TensorSpec

Result = TypeVar("Result")


class Scaled:
    """y = factor · x, for rows of `width`; counts its calls and their rows."""

    def __init__(self, factor: float = 1.0, width: int = 2) -> None:
        self.factor, self.calls = factor, []
        self.inputs = (TensorSpec("x", "FP32", (-1, width)),)
        self.outputs = (TensorSpec("y", "FP32", (-1, width)),)

    def predict(self, x: Any) -> Tensors:
        x = x["x"] if isinstance(x, dict) else x
        self.calls.append(len(x))
        return {"y": (x * self.factor).astype(np.float32)}


class MemorySource:
    """Versions that a test adds and removes."""

    def __init__(self, name: str, makers: Mapping[int, Callable[[], object]] | None = None, size: int = 0) -> None:
        self.name, self.size = name, size
        self.loaders: dict[int, ServableLoader] = {}
        for number, make in (makers or {}).items():
            self.add(number, make)

    def add(self, number: int, make: Callable[[], object], size: int | None = None) -> None:
        self.loaders[number] = ObjectLoader(make, self.size if size is None else size)

    def poll(self) -> Mapping[int, ServableLoader]:
        return dict(self.loaders)


def core_of(*sources: Any, settings: CoreSettings | None = None, **more: Any) -> ServingCore:
    core = ServingCore(list(sources), settings, **more)
    core.poll()
    return core


def x(*rows: list[float]) -> Tensors:
    return {"x": np.array(rows or [[1.0, 2.0]], dtype=np.float32)}


def onnx_file(path: Path, factor: float = 2.0, width: int = 2, weights: int = 0) -> Path:
    """An ONNX program y = factor · x; with `weights` it also holds so many float32 that it uses."""
    constants = [numpy_helper.from_array(np.array(factor, dtype=np.float32), "factor")]
    nodes = [helper.make_node("Mul", ["x", "factor"], ["y" if not weights else "scaled"])]
    if weights:
        side = weights // width
        constants.append(numpy_helper.from_array(np.full((width, side), 1e-9, dtype=np.float32), "wide"))
        nodes += [
            helper.make_node("MatMul", ["scaled", "wide"], ["hidden"]),
            helper.make_node("ReduceMean", ["hidden"], ["mean"], keepdims=1),
            helper.make_node("Add", ["scaled", "mean"], ["y"]),
        ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "scale", [value("x", TensorProto.FLOAT, ["N", width])], [value("y", TensorProto.FLOAT, ["N", width])],
        constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    onnx.save(model, str(scratch))
    os.replace(scratch, path)
    return path


def asked(core: ServingCore, ask: Callable[[httpx.AsyncClient], Awaitable[Result]], **options: Any) -> Result:
    """What a client of the app gets, without a socket."""

    async def main() -> Result:
        transport = httpx.ASGITransport(ServeApp(core, **options))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            found = await ask(client)
        await core.close()
        return found

    return asyncio.run(main())


class EchoModel:
    """Gives back its inputs, of whatever names and types they are; a name that begins with `bad` fails."""

    def predict(self, given: Any) -> Any:
        if isinstance(given, dict) and any(name.startswith("bad") for name in given):
            raise ValueError("this input is bad")
        return given


@contextmanager
def listening(core: ServingCore, options: ServerOptions | None = None) -> Iterator[str]:
    """`host:port` of the core served over a socket by a thread of this process."""
    options = options or ServerOptions()
    opened = bind(options.host, 0, 0)
    server, started = uvicorn.Server(make_config(core, options)), threading.Event()

    async def main() -> None:
        await answer_requests(core, server, opened, replace(options, poll=3600.0), started.set)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert started.wait(30.0)
    try:
        yield f"{options.host}:{opened.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30.0)
        assert not thread.is_alive()


def named(module: Any) -> dict[str, Any]:
    """As a checkpoint names them."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def write_checkpoint(directory: Path, step: int, module: Any) -> Path:
    """A whole checkpoint of run `one`, as worker 0 of 1 writes it."""
    from shoal.train.checkpoint.manifest import CheckpointManifest, folder_of
    from shoal.train.checkpoint.shard import pieces
    from shoal.train.checkpoint.writer import commit, write_shard

    part = folder_of(directory, step).with_name(f"step-{step:012d}.part")
    part.mkdir(parents=True)
    entry = write_shard(part, 0, pieces({f"0.parameter.{name}": each.detach() for name, each in named(module).items()}))
    commit(
        directory,
        CheckpointManifest(
            format=1, run="one", step=step, epoch=0, samples=0, workers=1, plan="", seed=0, shards=[entry]
        ),
    )
    return folder_of(directory, step)
