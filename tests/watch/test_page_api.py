"""The page's addresses: what they answer, and whom they refuse."""

import json
from pathlib import Path

import httpx
import pytest
import torch
from fake_runs import append, ended, logged, make_run, reported, started, step
from forked import soon
from prometheus_client.parser import text_string_to_metric_families

from shoal.core.errors import UsageError
from shoal.core.events import CheckpointSaved, TrafficCounted
from shoal.core.http_access import read_token
from shoal.core.record import worker_file
from shoal.models.registry import Registry
from shoal.watch.page import launching
from shoal.watch.page.app import WatchApp
from shoal.watch.page.catalog import RunCatalog
from shoal.watch.page.launching import LaunchForm, RunLauncher
from shoal.watch.page.prometheus import metrics_text
from shoal.watch.page.run_state import RunState
from shoal.watch.record import RunRecord
from shoal.watch.worker_logs import LogWriter, read_log

TOKEN = "a-token-of-some-length"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def private(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    saved = CheckpointSaved(at=101.0, step=2, size=10, paused=0.1, seconds=0.2, work=0.1)
    traffic = TrafficCounted(at=101.0, step=2, peers={"1": (100, 120)}, links={"1": (1e6, 0.01)})
    first = [
        started(0),
        step(0),
        logged(0, loss=2.0),
        step(1),
        logged(1, loss=1.0),
        saved,
        traffic,
        reported(2, good=0.9),
    ]
    make_run(tmp_path, [*first, ended()], [started(1), step(0), step(1), ended("failed", HOSTILE)], run="one")
    make_run(tmp_path, [started(0), step(0)], run="two", began=200.0)
    return tmp_path


class Asking:
    """Asks the app as a browser would, without a socket."""

    def __init__(self, root: Path) -> None:
        self.launcher = RunLauncher(root)
        self.app = WatchApp(RunCatalog(root), self.launcher).build(TOKEN)
        self.headers = {"Authorization": f"Bearer {TOKEN}"}

    def __call__(self, path: str, method: str = "GET", **more: object) -> httpx.Response:
        import asyncio

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
                headers = self.headers | dict(more.pop("headers", {}))  # type: ignore[call-overload]
                return await client.request(method, path, headers=headers, **more)  # type: ignore[arg-type]

        return asyncio.run(ask())


@pytest.fixture
def ask(root: Path) -> Asking:
    return Asking(root)


def test_runs_are_listed_newest_first(ask: Asking) -> None:
    rows = ask("/api/runs").json()["runs"]
    assert [(row["id"], row["state"], row["steps"]) for row in rows] == [("two", "killed", 1), ("one", "killed", 2)]


def test_a_run_is_told_in_parts(ask: Asking) -> None:
    found = ask("/api/runs/one").json()
    assert found["summary"]["steps"] == 2
    assert [member["cause"] for member in found["members"]] == ["", HOSTILE]
    assert found["checkpoints"][0]["step"] == 2
    assert found["can_stop"] is False
    assert found["culprit"]
    curves = ask("/api/runs/one/curves").json()
    assert curves["scalars"]["loss"] == {"step": [0, 1], "value": [2.0, 1.0], "width": 1}
    assert curves["axes"]["samples"]["values"] == [20.0, 40.0]
    assert ask("/api/runs/one/network").json()["edges"] == [
        {"from": 0, "to": 1, "payload": 100, "wire": 120, "rate": 1e6, "rtt": 0.01}
    ]
    assert len(ask("/api/runs/one/timeline?seconds=600").json()["workers"]["0"]) == 2
    assert ask("/api/runs/one/plan").json()["parts"][0]["does"]
    assert ask("/api/runs/one/model").json()["layers"] == []
    assert set(ask("/api/compare?run=one&run=two").json()["runs"]) == {"one", "two"}


def test_what_is_new_is_in_the_next_answer(ask: Asking, root: Path) -> None:
    assert ask("/api/runs/two").json()["summary"]["steps"] == 1
    append(worker_file(root / "two", 0), [step(1), step(2)])
    assert ask("/api/runs/two").json()["summary"]["steps"] == 3


@pytest.mark.parametrize("path", ["/api/runs", "/metrics", "/api/runs/one/log", "/api/stream", "/api/form"])
@pytest.mark.parametrize("given", ["", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
def test_nothing_of_a_run_without_the_token(ask: Asking, path: str, given: str) -> None:
    answer = ask(path, headers={"Authorization": given})
    assert answer.status_code == 401
    assert "address that shoal watch printed" in answer.json()["error"]


def test_the_empty_page_needs_no_token_and_may_not_be_framed(ask: Asking) -> None:
    answer = ask("/", headers={"Authorization": ""})
    assert answer.status_code == 200
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert ask("/static/../app.py", headers={"Authorization": ""}).status_code in (401, 404)
    assert "Plotly" in ask("/plotly.min.js", headers={"Authorization": ""}).text[:100_000]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_name_that_points_here_is_refused(ask: Asking, host: str) -> None:
    assert ask("/api/runs", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:9", "[::1]:9", "127.0.0.1", "10.0.0.3:8765"])
def test_addresses_of_this_machine_are_not(ask: Asking, host: str) -> None:
    assert ask("/api/runs", headers={"Host": host}).status_code == 200


def test_another_sites_page_is_refused(ask: Asking) -> None:
    assert ask("/api/runs", headers={"Origin": "http://evil.example"}).status_code == 403
    assert ask("/api/runs/one/stop", "POST", headers={"Origin": "null"}).status_code == 403
    assert ask("/api/runs", headers={"Origin": "http://127.0.0.1:1"}).status_code == 200


@pytest.mark.parametrize("name", ["nobody", "..", "%2e%2e%2fone", "one%2f..%2ftwo"])
def test_a_run_that_is_not_there(ask: Asking, name: str) -> None:
    assert ask(f"/api/runs/{name}").status_code in (404, 405)


def test_a_run_that_is_over_cannot_be_stopped(ask: Asking) -> None:
    answer = ask("/api/runs/one/stop", "POST")
    assert (answer.status_code, answer.json()["error"]) == (409, "the run is not live any more")
    assert ask("/api/runs/one/stop").status_code == 405


def test_a_run_that_is_over_cannot_be_switched(ask: Asking) -> None:
    answer = ask("/api/runs/one/switch", "POST", json={"plan": "int8"})
    assert (answer.status_code, answer.json()["error"]) == (409, "the run is not live any more")
    assert ask("/api/runs/one/switch", "POST", json={"plan": 5}).status_code == 400
    assert ask("/api/runs/one/switch", "POST", json={"plan": "x" * 100_000}).status_code == 413


def test_a_run_that_is_over_takes_no_workers(ask: Asking) -> None:
    answer = ask("/api/runs/one/scale", "POST", json={"add": 1})
    assert (answer.status_code, answer.json()) == (409, {"error": "the run is not live any more"})
    assert ask("/api/runs/one/scale", "POST", json={"add": -1}).status_code == 400
    assert ask("/api/runs/one/scale", "POST", json={"remove": [10**9]}).status_code == 400


def test_what_a_worker_printed_is_read_page_by_page(ask: Asking, root: Path) -> None:
    logs = LogWriter(root / "one")
    logs.add(0, HOSTILE)
    first = ask("/api/runs/one/log?worker=0").json()
    assert first["lines"] == [HOSTILE]
    logs.add(0, "more")
    assert ask(f"/api/runs/one/log?worker=0&after={first['end']}").json()["lines"] == ["more"]
    assert ask("/api/runs/one/log?worker=x").status_code == 400
    logs.close()


def test_a_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    logs = LogWriter(tmp_path, limit=1000)
    for number in range(100):
        logs.add(0, f"line {number} " + "x" * 40)
    logs.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2200
    assert read_log(tmp_path, 0)[0][-1].startswith("line 99")


def test_metrics_are_what_prometheus_reads(root: Path) -> None:
    make_run(root, [started(0), step(0), logged(0, loss=float("nan"))], run="three")
    states = [RunState(root / name) for name in ("one", "three")]
    for state in states:
        state.opened.info.versions["x"] = 'a "quoted"\nname\\'
        state.read(5.0)
    families = {each.name: each for each in text_string_to_metric_families(metrics_text(states))}
    steps = {(s.labels["run"], s.labels["worker"]): s.value for s in families["shoal_steps"].samples}
    assert steps[("one", "0")] == 2
    wanted = {"run": "one", "worker": "0", "phase": "exchange_wait"}
    phases = [sample for sample in families["shoal_phase_seconds"].samples if sample.labels == wanted]
    assert [sample.value for sample in phases] == [0.5]
    assert families["shoal_reported"].samples[0].labels["name"] == "good"


def test_uploads_are_limited_and_named_by_us(ask: Asking, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ask("/api/uploads?name=../../evil.csv", "POST", content=b"a,b\n1,x\n")
    assert kept.status_code == 201
    assert (root / ".uploads" / kept.json()["data"]).read_bytes() == b"a,b\n1,x\n"
    assert ask("/api/uploads?name=x.py", "POST", content=b"").status_code == 415
    monkeypatch.setattr(launching, "LARGEST_UPLOAD", 10)
    assert ask("/api/uploads?name=x.csv", "POST", content=b"x" * 11).status_code == 413

    async def pieces() -> object:  # no Content-Length to go by
        for _ in range(4):
            yield b"xxxx"

    assert ask("/api/uploads?name=x.csv", "POST", content=pieces()).status_code == 413
    assert len(list((root / ".uploads").iterdir())) == 1


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"source": "builtin", "data": "nope"}, "no built-in set 'nope'"),
        ({"source": "builtin", "data": "digits", "model": "gan"}, "no model 'gan'"),
        ({"source": "builtin", "data": "digits", "plan": "allreduec"}, "allreduec"),
        ({"source": "builtin", "data": "digits", "plan": "/etc/passwd.toml"}, "unexpected '/'"),
        ({"source": "builtin", "data": "digits", "workers": 0}, "workers"),
        ({"source": "builtin", "data": "digits", "name": "../x"}, "is not an id"),
        ({"source": "builtin", "data": "digits", "name": "one"}, "exists already"),
        ({"source": "upload", "data": "../../etc/passwd"}, "is no upload of this page"),
        ({"source": "path", "data": "/nowhere.csv"}, "nothing at '/nowhere.csv'"),
        ({"source": "builtin", "data": "digits", "more": 1}, "unknown field"),
    ],
)
def test_a_form_that_is_wrong_says_why(ask: Asking, form: dict[str, object], said: str) -> None:
    answer = ask("/api/launch", "POST", content=json.dumps(form))
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_the_form_becomes_a_command(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(launching.subprocess, "Popen", lambda words, **_: started.append(words))
    name = RunLauncher(root).start(LaunchForm(source="builtin", data="digits", workers=3, plan="fp16", name="mine"))
    assert name == "mine"
    words = " ".join(started[0])
    assert "run --name mine" in words
    assert "--workers 3 --plan fp16 --quiet" in words
    assert words.endswith("--data digits --model mlp --epochs 5 --batch 32 --label ")


def test_layers_of_the_form_are_kept_for_the_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(launching.subprocess, "Popen", lambda words, **_: started.append(words))
    RunLauncher(root).start(LaunchForm(source="builtin", data="digits", layers="[[layer]]", name="mine"))
    path = root / ".uploads" / "mine.toml"
    assert started[0][-2:] == ["--layers", str(path)]
    assert path.read_text() == "[[layer]]"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_form_builds_a_model_and_launches_it_under_a_plan_of_two_levels(ask: Asking, root: Path) -> None:
    """Row 181 of docs/systems.toml. What `h2o` does between hosts is in tests/sync/shared/test_host_copies.py."""
    layers = (Path(__file__).parents[2] / "examples" / "lenet.toml").read_text()
    form = {"source": "builtin", "data": "digits", "plan": "h2o", "layers": layers, "name": "mine", "epochs": 3}
    wrong = form | {"name": "wrong", "layers": "[[layer]]\ntype = 'konv'"}
    assert [ask("/api/launch", "POST", content=json.dumps(each)).status_code for each in (form, wrong)] == [202, 202]
    mine, broken = (ask.launcher.started[name].process.wait(200) for name in ("mine", "wrong"))
    assert (mine, broken) == (0, 1)
    found = json.loads((root / "mine" / "evaluation.json").read_text())
    assert found["accuracy"] > 0.8
    assert RunRecord.open(root / "mine").info.plan == "shared, local(16, average)"
    assert "Invalid value 'konv'" in ask("/api/runs/wrong").text


def test_a_run_that_is_not_registered_has_no_weights_to_give(ask: Asking, root: Path) -> None:
    assert ask("/api/runs/one").json()["registered"] is None
    assert "is not registered" in ask("/api/runs/one/weights").json()["error"]
    told = {"model": "one:1", "digest": "0" * 64, "registry": str(root / "models"), "seconds": 0.1}
    (root / "one" / "model.json").write_text(json.dumps(told))
    assert ask("/api/runs/one").json()["registered"]["model"] == "one:1"
    answer = ask("/api/runs/one/weights")
    assert (answer.status_code, "any more" in answer.json()["error"]) == (404, True)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_manifest_over_rest_becomes_a_registered_model(
    ask: Asking, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 92 of docs/systems.toml: nothing but requests, from the data to the weights."""
    from safetensors.torch import load

    monkeypatch.setenv("SHOAL_REGISTER", "1")
    monkeypatch.setenv("SHOAL_MODELS", str(tmp_path / "models"))
    rows = "".join(f"{at % 2},{at % 7},{'yes' if at % 2 else 'no'}\n" for at in range(400))
    data = ask("/api/uploads?name=rows.csv", "POST", content=f"a,b,class\n{rows}".encode()).json()["data"]
    manifest = {"source": "upload", "data": data, "model": "mlp", "workers": 2, "epochs": 10, "name": "mine"}
    assert ask("/api/launch", "POST", content=json.dumps(manifest)).json() == {"run": "mine"}

    def registered() -> object:
        found = ask("/api/runs/mine")
        return found.json()["registered"] if found.status_code == 200 else None

    assert soon(200.0, lambda: registered() is not None), ask("/api/launches/mine").text
    told = ask("/api/runs/mine").json()["registered"]
    answer = ask("/api/runs/mine/weights")
    weights = load(answer.content)
    stored = Registry(told["registry"]).tensors(Registry(told["registry"]).get(told["model"]))
    assert weights.keys() == stored.keys() != set()
    assert all(torch.equal(weights[name], stored[name]) for name in stored)
    assert ask.launcher.started["mine"].process.wait(60) == 0
    assert ask("/api/runs/mine/evaluation").json()["accuracy"] > 0.9


def test_a_token_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = read_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(path) == token
    path.write_text("short")
    with pytest.raises(UsageError, match="16 to 512"):
        read_token(path)
    path.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by others"):
        read_token(path)
