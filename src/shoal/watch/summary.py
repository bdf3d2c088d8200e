"""What a run came to, computed from its events alone; and its last file, `summary.json`."""

from pathlib import Path

import msgspec

from shoal.core.durable import write_file
from shoal.core.events import numbers
from shoal.core.record import RunSummary, StepPhases
from shoal.watch.record import SUMMARY, RunRecord
from shoal.watch.worker import PHASES, WorkerRecord, mean_phases, read_workers

NOT_ENDED = -1
"""Stands for the exit code while the run goes on, and after its launcher was killed."""


def summarise(record: RunRecord, exit: int = 0) -> RunSummary:  # noqa: A002  (the field's name on disk)
    """Sum up the workers' events as they are now."""
    return summarise_workers(record, read_workers(record), exit)


def summarise_workers(record: RunRecord, workers: list[WorkerRecord], exit: int = 0) -> RunSummary:  # noqa: A002
    samples = sum(worker.samples for worker in workers)
    # Workers train at the same time, so the slowest one's seconds are the run's.
    seconds = max((worker.seconds for worker in workers), default=0.0)
    losses, attempt = record.losses(), record.attempts[-1].attempt
    return RunSummary(
        run=record.info.run,
        dir=str(record.dir),
        plan=record.info.plan,
        workers=record.attempts[-1].workers,
        steps=max((worker.steps for worker in workers), default=0),
        samples=samples,
        seconds=seconds,
        samples_per_second=samples / seconds if seconds else 0.0,
        bytes_raw=sum(worker.bytes_raw for worker in workers),
        bytes_sent=sum(worker.bytes_sent for worker in workers),
        bytes_wire=sum(worker.bytes_wire for worker in workers),
        metrics=next((worker.metrics for worker in workers if worker.metrics), {}),
        phases=_mean_phases(workers),
        exit=exit,
        losses=len(losses),
        quarantined={str(e.worker): e.quarantined for e in losses if e.quarantined and e.attempt == attempt},
    )


def known_summary(record: RunRecord, workers: list[WorkerRecord] | None = None) -> RunSummary:
    """The summary the run left behind, else what its events say so far."""
    written = read_summary(record.dir)
    if written is None:
        return summarise_workers(record, workers or read_workers(record), NOT_ENDED)
    return msgspec.structs.replace(written, dir=str(record.dir))  # the folder may have moved since


def write_summary(directory: Path, summary: RunSummary) -> None:
    """Write the run's last file; a reader sees all of it or none."""
    write_file(directory / SUMMARY, msgspec.json.format(msgspec.json.encode(summary)) + b"\n")


def read_summary(directory: Path) -> RunSummary | None:
    """What `write_summary` wrote; None if the run has not ended or the file is not a summary."""
    try:
        raw = msgspec.json.decode((directory / SUMMARY).read_bytes(), type=dict[str, object])
        return msgspec.convert(raw | {"metrics": numbers(raw.get("metrics"))}, RunSummary)
    except (FileNotFoundError, ValueError):
        return None


def _mean_phases(workers: list[WorkerRecord]) -> StepPhases:
    totals = {phase: sum(getattr(w.phases, phase) * w.steps for w in workers) for phase in PHASES}
    return mean_phases(totals, sum(worker.steps for worker in workers))
