"""Live runs as Prometheus text (exposition format 0.0.4), at /metrics of the page's server."""

from collections.abc import Iterator, Sequence
from math import isfinite, isnan

from shoal.watch.page.run_state import RunState
from shoal.watch.worker import PHASES, WorkerRecord

Sample = tuple[dict[str, str], float]


def metrics_text(states: Sequence[RunState]) -> str:
    """One family after the other, each with its samples of all runs."""
    workers = [(state, record) for state in states for record in state.records()]
    families: list[tuple[str, str, str, list[Sample]]] = [
        ("shoal_run_info", "gauge", "A live run; always 1.", [_info(state) for state in states]),
        ("shoal_worker_up", "gauge", "1 while the worker runs.", [_up(*each) for each in workers]),
        _total("steps", "Optimizer steps.", workers, "steps"),
        _total("samples", "Samples consumed.", workers, "samples"),
        _total("sent_bytes", "Bytes of encoded payloads.", workers, "bytes_sent"),
        _total("wire_bytes", "Bytes put on sockets.", workers, "bytes_wire"),
        (
            "shoal_phase_seconds_total",
            "counter",
            "Seconds of training by phase of the step.",
            [phase for each in workers for phase in _phases(*each)],
        ),
        ("shoal_logged", "gauge", "The newest logged value, mean over workers.", [*_logged(states)]),
        ("shoal_reported", "gauge", "The newest reported metric.", [*_reported(workers)]),
    ]
    return "".join(_family(*family) for family in families if family[3])


def _info(state: RunState) -> Sample:
    info = state.opened.info
    return ({"run": info.run, "plan": info.plan, "script": info.script}, 1.0)


def _labels(state: RunState, record: WorkerRecord) -> dict[str, str]:
    return {"run": state.opened.info.run, "worker": str(record.rank)}


def _up(state: RunState, record: WorkerRecord) -> Sample:
    return (_labels(state, record) | {"host": record.host}, float(record.state == "running"))


def _total(
    name: str, words: str, workers: Sequence[tuple[RunState, WorkerRecord]], field: str
) -> tuple[str, str, str, list[Sample]]:
    found = [(_labels(state, record), float(getattr(record, field))) for state, record in workers]
    return (f"shoal_{name}_total", "counter", words, found)


def _phases(state: RunState, record: WorkerRecord) -> Iterator[Sample]:
    for phase in PHASES:
        # The record has means; a counter needs sums.
        yield (_labels(state, record) | {"phase": phase}, getattr(record.phases, phase) * record.steps)


def _logged(states: Sequence[RunState]) -> Iterator[Sample]:
    for state in states:
        for name, blocks in state.scalars.items():
            # Blocks may be empty, or hold what is no number.
            values = [value for value in blocks.means(0) if value is not None]
            if values:
                yield ({"run": state.opened.info.run, "name": name}, values[-1])


def _reported(workers: Sequence[tuple[RunState, WorkerRecord]]) -> Iterator[Sample]:
    for state, record in workers:
        for name, value in record.metrics.items():
            yield (_labels(state, record) | {"name": name}, value)


def _family(name: str, kind: str, words: str, samples: Sequence[Sample]) -> str:
    lines = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{inside}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    # Backslashes first, or those of the other escapes would be doubled.
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if isfinite(value):
        return repr(value)
    # As Prometheus spells them.
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
