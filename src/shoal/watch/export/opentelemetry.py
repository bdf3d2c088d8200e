"""A run as OpenTelemetry metrics over OTLP/HTTP, to `--export otel=URL` or wherever $OTEL_EXPORTER_OTLP_ENDPOINT says.

Sums by worker: shoal.steps, shoal.samples, shoal.sent.bytes, shoal.phase.seconds. Gauges: shoal.logged, shoal.reported.
"""

from shoal.core.events import AnyEvent, ResultsReported, StepFinished, ValuesLogged
from shoal.core.version import __version__
from shoal.watch.record import RunRecord
from shoal.watch.worker import PHASES

INTERVAL = 5000
"""Milliseconds between two exports."""


class OpenTelemetryExporter:
    """Of one run."""

    def __init__(self, record: RunRecord, place: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        exporter = OTLPMetricExporter(endpoint=place) if place else OTLPMetricExporter()
        info = record.info
        resource = Resource.create(
            {"service.name": "shoal", "service.version": __version__, "shoal.run": info.run, "shoal.plan": info.plan}
        )
        self._reader = PeriodicExportingMetricReader(exporter, export_interval_millis=INTERVAL)
        self._provider = MeterProvider(resource=resource, metric_readers=[self._reader])
        meter = self._provider.get_meter("shoal")
        self._steps = meter.create_counter("shoal.steps", "{step}", "Optimizer steps")
        self._samples = meter.create_counter("shoal.samples", "{sample}", "Samples consumed")
        self._sent = meter.create_counter("shoal.sent.bytes", "By", "Bytes of encoded payloads")
        self._phases = meter.create_counter("shoal.phase.seconds", "s", "Seconds by phase of the step")
        self._logged = meter.create_gauge("shoal.logged", description="The newest logged value")
        self._reported = meter.create_gauge("shoal.reported", description="The newest reported metric")

    def add(self, rank: int, event: AnyEvent) -> None:
        worker = {"worker": rank}
        if isinstance(event, StepFinished):
            self._steps.add(event.steps, worker)
            self._samples.add(event.samples, worker)
            self._sent.add(event.sent, worker)
            for phase in PHASES:
                # A counter of OpenTelemetry takes no negative amount.
                self._phases.add(max(0.0, getattr(event, phase)), worker | {"phase": phase})
        elif isinstance(event, ValuesLogged):
            for name, value in event.values.items():
                self._logged.set(value, worker | {"name": name})
        elif isinstance(event, ResultsReported):
            for name, value in event.metrics.items():
                self._reported.set(value, worker | {"name": name})

    def flush(self) -> None:
        """Nothing: a thread of the library exports every few seconds."""

    def close(self, record: RunRecord) -> str:
        self._provider.shutdown()
        return f"run {record.info.run} was exported by OpenTelemetry"
