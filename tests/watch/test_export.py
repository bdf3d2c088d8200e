"""Exporters hand a run to the real receiver: MLflow's own client on SQLite, OpenTelemetry's own decoder."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from fake_runs import ended, logged, make_run, reported, started, step

from shoal.core.errors import UsageError
from shoal.watch.export.follow import choose, export_runs
from shoal.watch.record import RunRecord
from shoal.watch.summary import summarise, write_summary


@pytest.fixture(autouse=True)
def private(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))


@pytest.fixture
def finished(tmp_path: Path) -> RunRecord:
    def events(rank: int) -> list[object]:
        middle = [each for n in range(4) for each in (step(n), logged(n, loss=4.0 - n + rank, **{"odd name!": 1.0}))]
        return [started(rank), *middle, reported(4, accuracy=0.5), ended()]

    record = make_run(tmp_path / "runs", events(0), events(1))  # type: ignore[arg-type]
    write_summary(record.dir, summarise(record, 0))
    return record


@pytest.mark.soak("page")  # importing MLflow and making its tables takes ten seconds of processor
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # MLflow's and Alembic's own
def test_mlflow_holds_one_run_with_metrics_of_each_worker(finished: RunRecord, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    uri, said = f"sqlite:///{tmp_path}/mlflow.db", []
    for _ in range(2):  # the second export takes the place of the first
        export_runs(f"mlflow={uri}", [finished.dir], said.append)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("shoal")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id in said[1]
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run-a")
    assert run.data.params["plan"] == "allreduce(ring)"
    assert run.data.metrics["accuracy"] == 0.5
    history = client.get_metric_history(run.info.run_id, "worker-1/log/loss")
    assert [(each.step, each.value) for each in history] == [(0, 5.0), (1, 4.0), (2, 3.0), (3, 2.0)]
    assert run.data.metrics["worker-0/log/odd name_"] == 1.0
    assert run.data.metrics["worker-0/time/exchange_wait"] == 0.25


class Receiver:
    """Takes OTLP over HTTP as a collector does."""

    def __init__(self) -> None:
        bodies = self.bodies = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                bodies.append((self.headers.get("Content-Encoding"), body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1/metrics"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def test_a_collector_gets_the_sums_of_each_worker(finished: RunRecord, receiver: Receiver) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    export_runs(f"otel={receiver.address}", [finished.dir], lambda line: None)
    encoding, body = receiver.bodies[-1]
    assert encoding in (None, "identity")
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    about = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert about["shoal.run"] == "run-a"
    metrics = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    steps = {point.attributes[0].value.int_value: point.as_int for point in metrics["shoal.steps"].sum.data_points}
    assert steps == {0: 4, 1: 4}
    assert metrics["shoal.sent.bytes"].sum.is_monotonic
    assert {point.as_double for point in metrics["shoal.reported"].gauge.data_points} == {0.5}


def test_a_run_that_was_killed_is_exported_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.watch.export import follow

    record = make_run(tmp_path, [started(0), step(0)])
    monkeypatch.setattr(follow, "START", 0.0)
    heard: list[object] = []

    class Kept:
        def __init__(self, record: RunRecord, place: str) -> None: ...
        def add(self, rank: int, event: object) -> None:
            heard.append(event)

        def flush(self) -> None: ...
        def close(self, record: RunRecord) -> str:
            return "closed"

    monkeypatch.setitem(follow.MAKERS, "kept", Kept)
    monkeypatch.setitem(follow.PACKAGES, "kept", "json")
    export_runs("kept", [record.dir], heard.append)
    assert len(heard) == 3
    assert heard[-1] == "closed"


def test_an_exporter_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no exporter 'wandb'; there are mlflow, otel"):
        choose("wandb")
