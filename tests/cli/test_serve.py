"""`shoal serve`: one command, an address, a curl line that works; what is refused; nothing left behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from forked import Forked, command, shoal, soon

from shoal.models.registry import Registry

WAIT = 60.0
pytestmark = pytest.mark.usefixtures("tidy")


def doubler(factor: float) -> bytes:
    """y = factor · x as an ONNX program."""
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        "scale",
        [value("x", TensorProto.FLOAT, ["N", 2])],
        [value("y", TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return model.SerializeToString()


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    found = Registry(tmp_path / "models")
    for factor in (2.0, 3.0):
        found.add("digits", files={"model.onnx": doubler(factor)})
    found.tag("digits:1", "prod")
    return found


def address(running: Forked) -> str:
    assert soon(WAIT, lambda: "try: " in running.err.read_text()), running.err.read_text()
    found = re.search(r"at (http://\S+)", running.err.read_text())
    assert found is not None
    return found.group(1)


def end(running: Forked) -> None:
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait(WAIT).code == 0


def test_an_alias_is_served_followed_and_ended(tmp_path: Path, registry: Registry) -> None:
    running = command(tmp_path, "serve", "digits@prod", "--port", "0", "--poll", "20ms")
    base = address(running)
    line = re.search(r"try: (curl .*)", running.err.read_text())
    assert line is not None
    done = subprocess.run(["sh", "-c", line.group(1)], capture_output=True, text=True, timeout=WAIT)
    assert done.stdout == '{"model":"digits","version":1,"outputs":[[0.0,0.0]]}'
    registry.tag("digits:2", "prod")
    assert soon(WAIT, lambda: httpx.post(f"{base}/predict", content="[1, 1]").json()["outputs"] == [3.0, 3.0])
    assert "shoal: serving digits:2\n" in running.err.read_text()
    end(running)
    with pytest.raises(httpx.ConnectError):
        httpx.get(base)


def test_several_models_and_a_chain_of_them(tmp_path: Path) -> None:
    (tmp_path / "scale.onnx").write_bytes(doubler(2.0))
    (tmp_path / "table.json").write_text('{"a": [1.0, 2.0]}')
    (tmp_path / "code.py").write_text("class Sum:\n    def predict(self, x): return x.sum()\nmake = Sum\n")
    words = ["scale.onnx", "table.json", "added=code.py:make", "--combine", "whole=table>scale"]
    running = command(tmp_path, "serve", *words, "--port", "0")
    base = address(running)
    assert httpx.post(f"{base}/predict/whole", content='["a"]').json()["outputs"] == [[2.0, 4.0]]
    assert httpx.post(f"{base}/predict/added", content="[1, 2, 3]").json()["outputs"] == 6
    end(running)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nobody"], "cannot serve 'nobody': no model 'nobody'"),
        (["nowhere.onnx"], "no file or folder 'nowhere.onnx'"),
        (["digits@prod", "--host", "0.0.0.0"], "--token-file FILE"),
        (["digits@prod", "--memory", "lots"], "--memory 'lots' is no size; write 512MB or 2GB"),
        (["digits@prod", "--memory", "10"], "the budget is 10"),
        (["digits@prod", "digits:1"], "two models have the same name"),
        (["digits@prod", "--goal", "soon"], "soon"),
        (["model.pt2"], "--trust-pt2"),
        (["digits@prod", "--processes", "some"], "--processes some is no number of processes; write 4, or 1:4"),
        (["digits@prod", "--processes", "0"], "--processes 0 starts no process"),
        (["digits@prod", "--processes", "0:2", "--grpc-port", "0"], "give 1:2 with gRPC"),
        (["digits", "--rollout", "canary"], "--rollout 'canary': 'canary' is no stage"),
        (["digits", "--rollout", "shadow", "--rule", "errors<2"], "'errors<2' is no condition"),
        (["digits", "--traffic", "some"], "--traffic 'some' is unknown"),
        (["digits", "--cache", "big"], "--cache 'big' is no size"),
        (["nobody", "--processes", "2"], "cannot serve 'nobody': no model 'nobody'"),
    ],
)
def test_what_cannot_be_served_is_refused_on_one_line(
    tmp_path: Path, registry: Registry, words: list[str], error: str
) -> None:
    (tmp_path / "model.pt2").write_bytes(b"no program")
    outcome = shoal(tmp_path, "serve", *words, "--port", "0")
    assert (outcome.code, error in outcome.err, outcome.err.count("\n")) == (2, True, 1), outcome.err


def test_a_token_is_asked_for(tmp_path: Path, registry: Registry) -> None:
    running = command(tmp_path, "serve", "digits", "--port", "0", "--token-file", "secret")
    base = address(running)
    assert httpx.get(f"{base}/v2").status_code == 401
    token = {"Authorization": f"Bearer {(tmp_path / 'secret').read_text().strip()}"}
    assert httpx.get(f"{base}/v2", headers=token).status_code == 200
    end(running)


def kill_one_worker(running: Forked) -> int:
    """SIGKILL for one of the processes that answer; returns its process id."""
    words = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    os.kill(int(words[0]), signal.SIGKILL)
    return int(words[0])


def test_several_processes_answer_and_a_killed_one_is_replaced(tmp_path: Path, registry: Registry) -> None:
    running = command(tmp_path, "serve", "digits@prod", "--port", "0", "--processes", "2", "--poll", "20ms")
    base = address(running)
    lost = kill_one_worker(running)
    found = [httpx.post(f"{base}/predict", content="[1, 1]").json()["outputs"] for _ in range(20)]
    assert found == [[2.0, 2.0]] * 20
    assert soon(WAIT, lambda: f"(pid {lost}) was killed by signal 9" in running.err.read_text())
    registry.tag("digits:2", "prod")  # every process follows it
    assert soon(
        WAIT, lambda: {httpx.post(f"{base}/predict", content="[1, 1]").json()["version"] for _ in range(9)} == {2}
    )
    end(running)


def test_a_new_version_goes_through_its_stages_in_all_processes(tmp_path: Path, registry: Registry) -> None:
    stages = ["--rollout", "shadow,canary:50%", "--rule", "requests>=4,errors<=0", "--cache", "1MB"]
    running = command(tmp_path, "serve", "digits", "--port", "0", "--processes", "2", "--poll", "20ms", *stages)
    base = address(running)
    registry.add("digits", files={"model.onnx": doubler(7.0)})

    def versions() -> set[int]:
        answers = [httpx.post(f"{base}/predict", content="[1, 1]") for _ in range(9)]
        assert {each.status_code for each in answers} == {200}
        return {each.json()["version"] for each in answers}

    assert soon(WAIT, lambda: versions() == {3})
    assert soon(WAIT, lambda: "shoal: digits: 3 is kept, 2 is let go" in (versions(), running.err.read_text())[1])
    told = httpx.get(f"{base}/v2/models/digits/traffic").json()
    assert (told["rollout"]["stable"], told["rollout"]["candidate"]) == (3, None)
    end(running)


def test_grpc_is_answered_by_every_process(tmp_path: Path, registry: Registry) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    words = ["serve", "digits:1", "--port", "0", "--grpc-port", "0", "--processes", "2", "--models", "models"]
    # not a fork of this process, because gRPC does not survive one once it has been used
    running = subprocess.Popen([sys.executable, "-m", "shoal", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")
        place = next(line for line in lines if "gRPC at" in line).split()[-1]
        for _ in range(6):  # each connection goes to one of the processes
            with triton.InferenceServerClient(place, channel_args=[("grpc.use_local_subchannel_pool", 1)]) as client:
                tensor = triton.InferInput("x", [1, 2], "FP32")
                tensor.set_data_from_numpy(np.ones((1, 2), dtype=np.float32))
                assert client.infer("digits", [tensor]).as_numpy("y").tolist() == [[2.0, 2.0]]
    finally:
        running.terminate()
        assert running.wait(WAIT) == 0
        running.stderr.close()


def test_no_process_while_nobody_asks_and_one_as_soon_as_somebody_does(tmp_path: Path, registry: Registry) -> None:
    running = command(tmp_path, "serve", "digits:1", "--port", "0", "--processes", "0:2")
    base = address(running)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    for _ in range(2):
        assert soon(WAIT, lambda: not children.read_text().split())
        assert httpx.post(f"{base}/predict", content="[1, 1]", timeout=WAIT).json()["outputs"] == [2.0, 2.0]
    end(running)
