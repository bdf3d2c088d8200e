"""The addresses of the server, asked without a socket."""

import asyncio
import gzip
import json
from typing import Any

import httpx
import numpy as np
import pytest
from served import MemorySource, Scaled, asked, core_of, x

from shoal.serve.app import ServeApp
from shoal.serve.batcher import BatchSettings
from shoal.serve.core import ServingCore
from shoal.serve.core_settings import CoreSettings
from shoal.serve.errors import ModelMissing
from shoal.serve.http import BodyLimits
from shoal.serve.plain import example
from shoal.serve.tensors import TensorSpec

TOKEN = "a-token-of-some-length"
ASK = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


def serving(settings: CoreSettings | None = None) -> ServingCore:
    return core_of(MemorySource("m", {1: lambda: Scaled(2.0), 2: lambda: Scaled(3.0)}), settings=settings)


def get(path: str, core: ServingCore | None = None, method: str = "GET", **more: Any) -> httpx.Response:
    options = {key: more.pop(key) for key in ("token", "names", "limits") if key in more}
    return asked(core or serving(), lambda client: client.request(method, path, **more), **options)


def post(path: str, content: bytes | str | dict, core: ServingCore | None = None, **more: Any) -> httpx.Response:
    text = json.dumps(content) if isinstance(content, dict) else content
    return get(path, core, "POST", content=text, **more)


class TestProtocol:
    def test_infer_by_version_and_latest(self) -> None:
        for path, factor in (("", 3.0), ("/versions/2", 3.0), ("/versions/latest", 3.0)):
            found = post(f"/v2/models/m{path}/infer", ASK).json()
            assert found["outputs"][0]["data"] == [factor, 2 * factor]
            assert (found["model_name"], found["model_version"]) == ("m", "2")

    def test_binary_in_and_out(self) -> None:
        array = np.array([[1.0, 2.0]], dtype=np.float32)
        head = {
            "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
        text = json.dumps(head).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        found = post("/v2/models/m/infer", text + array.tobytes(), headers=headers)
        length = int(found.headers["inference-header-content-length"])
        assert np.frombuffer(found.content[length:], np.float32).tolist() == [3.0, 6.0]
        assert json.loads(found.content[:length])["outputs"][0]["parameters"] == {"binary_data_size": 8}

    def test_compressed_requests_and_answers(self) -> None:
        ask = {"inputs": [{"name": "x", "shape": [200, 2], "datatype": "FP32", "data": [1.5] * 400}]}
        packed = gzip.compress(json.dumps(ask).encode())
        headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
        found = post("/v2/models/m/infer", packed, headers=headers)
        assert found.headers["content-encoding"] == "gzip"
        assert found.json()["outputs"][0]["data"] == [4.5] * 400

    def test_health_metadata_versions_and_statistics(self) -> None:
        async def ask(client: httpx.AsyncClient) -> list[Any]:
            await client.post("/v2/models/m/infer", content=json.dumps(ASK))
            paths = ["", "/health/live", "/health/ready", "/models/m", "/models/m/ready", "/models/m/versions"]
            return [(await client.get(f"/v2{path}")).json() for path in [*paths, "/models/m/stats", "/models/stats"]]

        server, live, ready, model, model_ready, versions, stats, all_stats = asked(serving(), ask)
        assert server["name"] == "shoal"
        assert (live, ready, model_ready) == ({"live": True}, {"ready": True}, {"name": "m", "ready": True})
        assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
        assert model["versions"] == ["2"]
        assert [(each["version"], each["state"], each["serving"]) for each in versions["versions"]] == [
            ("2", "available", True)
        ]
        assert stats == all_stats
        (found,) = stats["model_stats"]
        assert (found["inference_count"], found["execution_count"]) == (1, 1)
        assert found["inference_stats"]["success"]["count"] == 1
        assert found["batch_stats"] == [{"batch_size": 1, "count": 1}]

    def test_a_server_without_a_loaded_model_is_not_ready(self) -> None:
        core = core_of(MemorySource("m"))
        assert get("/v2/health/ready", core).status_code == 503
        assert post("/v2/models/m/infer", ASK, core_of(MemorySource("m"))).status_code == 404

    @pytest.mark.parametrize(
        ("path", "status"),
        [("/nowhere", 404), ("/v2/models/n", 404), ("/v2/models/m/versions/9", 404), ("/v2/models/m/versions/x", 404)],
    )
    def test_addresses_that_are_not_there(self, path: str, status: int) -> None:
        found = get(path)
        assert (found.status_code, list(found.json())) == (status, ["error"])

    def test_the_wrong_method(self) -> None:
        assert get("/v2/models/m/infer").status_code == 405
        assert post("/v2/models/m", "").status_code == 405


class TestPredict:
    def test_a_sample_a_batch_and_an_example(self) -> None:
        assert post("/predict", "[1, 2]").json() == {"model": "m", "version": 2, "outputs": [3.0, 6.0]}
        assert post("/predict/m", "[[1, 2], [3, 4]]").json()["outputs"] == [[3.0, 6.0], [9.0, 12.0]]
        assert post("/predict?model=m&version=2", '{"inputs": [1, 2]}').json()["outputs"] == [3.0, 6.0]
        assert get("/example/m").json() == {"inputs": [[0.0, 0.0]]}

    def test_there_is_no_example_of_a_model_that_does_not_say_what_it_takes(self) -> None:
        with pytest.raises(ModelMissing, match="declares no inputs"):
            example([])

    def test_errors_are_one_line(self) -> None:
        found = post("/predict", "[1, 2, 3]")
        assert found.status_code == 400
        assert found.json() == {"error": "input 'x' has shape [1, 3]; the model takes [-1, 2]"}


class TestAccess:
    def test_a_token_is_asked_for_where_there_is_one(self) -> None:
        assert get("/v2", token=TOKEN).status_code == 401
        assert get("/v2", token=TOKEN, headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert get("/v2", token=TOKEN, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200

    @pytest.mark.parametrize("headers", [{"Host": "evil.example:80"}, {"Origin": "http://evil.example"}])
    def test_other_names_and_other_sites_are_refused(self, headers: dict[str, str]) -> None:
        assert get("/v2", headers=headers).status_code == 401

    def test_rolling_back_needs_a_token(self) -> None:
        assert post("/v2/models/m/rollback", "").status_code == 401

    def test_rolling_back_and_following_again(self) -> None:
        async def ask(client: httpx.AsyncClient) -> list[Any]:
            client.headers["Authorization"] = f"Bearer {TOKEN}"
            paths = ["/v2/models/m/rollback", "/v2/models/m/follow", "/v2/models/m/versions/1/rollback"]
            return [(await client.post(path)).json()["version"] for path in paths]

        assert asked(serving(), ask, token=TOKEN) == ["1", "2", "1"]


class TestLimits:
    LIMITS = BodyLimits(body=200, all_bodies=250)

    def test_a_body_beyond_the_limit(self) -> None:
        found = post("/predict", "[" + "1," * 200 + "1]", limits=self.LIMITS)
        assert (found.status_code, "200 is the most" in found.json()["error"]) == (413, True)

    def test_a_small_body_that_unpacks_to_a_large_one(self) -> None:
        packed = gzip.compress(b" " * 10_000)
        assert len(packed) < 200
        found = post("/predict", packed, limits=self.LIMITS, headers={"Content-Encoding": "gzip"})
        assert (found.status_code, "decompressed" in found.json()["error"]) == (413, True)

    @pytest.mark.parametrize("packed", [b"garbage", gzip.compress(b"[1, 2]", mtime=0)[:-9]], ids=["garbage", "torn"])
    def test_damaged_compression(self, packed: bytes) -> None:
        assert post("/predict", packed, headers={"Content-Encoding": "gzip"}).status_code == 400
        assert post("/predict", packed, headers={"Content-Encoding": "zstd"}).status_code == 400

    def test_a_body_that_does_not_come_is_given_up(self) -> None:
        async def main() -> list[dict[str, Any]]:
            sent: list[dict[str, Any]] = []

            async def receive() -> dict[str, Any]:
                await asyncio.sleep(3600)
                raise AssertionError

            async def send(message: dict[str, Any]) -> None:
                sent.append(message)

            scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [(b"host", b"127.0.0.1")]}
            await ServeApp(serving(), limits=BodyLimits(seconds=0.01))(scope, receive, send)
            return sent

        start, rest = asyncio.run(main())
        assert (start["status"], b"did not come within" in rest["body"]) == (400, True)

    @pytest.mark.parametrize("value", ["x", "-1", "1e9", "nan"])
    def test_a_timeout_that_is_none(self, value: str) -> None:
        assert post("/predict", "[1, 2]", headers={"Request-Timeout": value}).status_code == 400


class Waiting:
    """Computes when it is let; says that it has begun."""

    inputs = (TensorSpec("x", "FP32", (-1, 2)),)
    outputs = (TensorSpec("y", "FP32", (-1, 2)),)

    def __init__(self) -> None:
        import threading

        self.begun, self.let, self.calls = threading.Semaphore(0), threading.Event(), 0

    def predict(self, rows: np.ndarray) -> np.ndarray:
        self.calls += 1
        self.begun.release()
        assert self.let.wait(60)
        return rows


class TestOverload:
    def test_a_full_queue_is_503_with_retry_after(self) -> None:
        model = Waiting()
        core = core_of(
            MemorySource("m", {1: lambda: model}),
            settings=CoreSettings(batch=BatchSettings(queue=1), batching=False),
        )

        async def ask(client: httpx.AsyncClient) -> httpx.Response:
            first = asyncio.create_task(client.post("/predict", content="[1, 2]"))
            await asyncio.to_thread(model.begun.acquire, timeout=60)
            second = asyncio.create_task(client.post("/predict", content="[1, 2]"))
            while not core.batch_limits()["m", 1][1]:
                await asyncio.sleep(0)
            refused = await client.post("/predict", content="[1, 2]")
            model.let.set()
            assert [(await each).status_code for each in (first, second)] == [200, 200]
            return refused

        refused = asked(core, ask)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1

    def test_who_is_gone_is_not_computed(self) -> None:
        model = Waiting()
        core = core_of(MemorySource("m", {1: lambda: model}), settings=CoreSettings(batching=False))

        async def main() -> None:
            app, leave = ServeApp(core), asyncio.Event()
            messages = iter([{"type": "http.request", "body": b"[1, 2]"}])

            async def receive() -> dict[str, Any]:
                for message in messages:
                    return message
                await leave.wait()
                return {"type": "http.disconnect"}

            async def send(message: dict[str, Any]) -> None: ...

            busy = asyncio.create_task(core.infer("m", x()))
            await asyncio.to_thread(model.begun.acquire, timeout=60)
            scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [(b"host", b"127.0.0.1")]}
            asking = asyncio.create_task(app(scope, receive, send))
            while not core.batch_limits()["m", 1][1]:
                await asyncio.sleep(0)
            leave.set()
            await asking
            model.let.set()
            await busy
            await core.close()

        asyncio.run(main())
        assert model.calls == 1
        assert core.metrics_of("m", 1).statuses == {200: 1, 499: 1}

    def test_a_client_that_waits_too_short_gets_504(self) -> None:
        model = Waiting()
        core = core_of(MemorySource("m", {1: lambda: model}))

        async def ask(client: httpx.AsyncClient) -> httpx.Response:
            found = await client.post("/predict", content="[1, 2]", headers={"Request-Timeout": "0.01"})
            model.let.set()
            return found

        assert asked(core, ask).status_code == 504


def test_metrics_are_prometheus_text() -> None:
    async def ask(client: httpx.AsyncClient) -> str:
        await client.post("/predict", content="[1, 2]")
        return (await client.get("/metrics")).text

    assert 'shoal_serve_requests_total{model="m",version="2",status="200"} 1' in asked(serving(), ask)
