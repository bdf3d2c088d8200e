"""A run of Shoal as a run of MLflow: parameters, and metrics of each worker as `worker-0/log/loss`.

`--export mlflow=URI` names the tracking server or database; else $MLFLOW_TRACKING_URI, else mlflow.db in the folder of
runs. The experiment is `shoal`. Exported again, a run takes the place of what was exported before.
"""

import os
import re
from math import isfinite
from typing import Any

from shoal.core.events import AnyEvent, ResultsReported, StepFinished, ValuesLogged
from shoal.core.merging import merge_steps
from shoal.watch.record import RunRecord
from shoal.watch.summary import read_summary
from shoal.watch.tensorboard import scalars

EXPERIMENT = "shoal"
TAG = "shoal.run_dir"
BATCH = 1000
"""Metrics that MLflow takes at once."""
LONGEST_PARAM = 500
MEAN_SECONDS = 1.0
"""Steps are merged to one set of scalars a second: more could be stored, but not seen in a chart."""


class StepMeans:
    """Collects the steps of one worker."""

    def __init__(self) -> None:
        self._steps: list[StepFinished] = []

    def add(self, step: StepFinished) -> StepFinished | None:
        """Take a step; gives the merged steps of a second when it is full."""
        self._steps.append(step)
        return self.take() if sum(each.seconds for each in self._steps) >= MEAN_SECONDS else None

    def take(self) -> StepFinished | None:
        """What has been collected, if anything."""
        steps, self._steps = self._steps, []
        return merge_steps(steps) if steps else None


class MlflowExporter:
    """Of one run."""

    def __init__(self, record: RunRecord, place: str) -> None:
        from mlflow.entities import Metric  # not at the top: importing it changes warnings and logging
        from mlflow.tracking import MlflowClient

        uri = place or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{record.dir.parent.absolute()}/mlflow.db"
        self.uri, self._metric = uri, Metric
        self._client = MlflowClient(tracking_uri=uri)
        self._run = self._create(record)
        # By worker, because steps of different workers do not add up to one mean.
        self._steps: dict[int, StepMeans] = {}
        self._waiting: list[Any] = []

    def _create(self, record: RunRecord) -> str:
        from mlflow.entities import Param, RunTag

        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(EXPERIMENT)
        folder = str(record.dir.resolve())
        # Without quotes, because one would end the text in MLflow's filter.
        for old in self._client.search_runs([experiment], f"tags.`{TAG}` = '{folder.replace(chr(39), '')}'"):
            self._client.delete_run(old.info.run_id)
        info = record.info
        run = self._client.create_run(
            experiment, start_time=int(1000 * info.started), run_name=info.run, tags={TAG: folder.replace("'", "")}
        )
        params = {"plan": info.plan, "workers": info.workers, "seed": info.seed, "script": info.script, "lab": info.lab}
        tags = [RunTag(f"shoal.{name}", version) for name, version in info.versions.items()]
        self._client.log_batch(
            run.info.run_id,
            params=[Param(name, str(value)[:LONGEST_PARAM]) for name, value in params.items()],
            tags=tags,
        )
        return str(run.info.run_id)

    def add(self, rank: int, event: AnyEvent) -> None:
        if isinstance(event, StepFinished):
            merged = self._steps.setdefault(rank, StepMeans()).add(event)
            if merged is not None:
                self._add_scalars(rank, merged)
        elif isinstance(event, ValuesLogged | ResultsReported):
            self._add_scalars(rank, event)

    def _add_scalars(self, rank: int, event: StepFinished | ValuesLogged | ResultsReported) -> None:
        # MLflow counts milliseconds.
        at = int(1000 * event.at)
        for name, value in scalars(event).items():
            key = to_key(f"worker-{rank}/{name}")
            if isfinite(value):  # databases differ in what they make of others
                self._waiting.append(self._metric(key, value, at, event.step))

    def flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            self._client.log_batch(self._run, metrics=batch)

    def close(self, record: RunRecord) -> str:
        for rank, means in self._steps.items():
            # The last steps did not fill a second.
            if (rest := means.take()) is not None:
                self._add_scalars(rank, rest)
        summary = read_summary(record.dir)
        if summary is not None:
            totals = {
                "samples_per_second": summary.samples_per_second,
                "bytes_sent": summary.bytes_sent,
                "seconds": summary.seconds,
                **summary.metrics,
            }
            at = int(1000 * (record.info.started + summary.seconds))
            for name, value in totals.items():
                if isfinite(value):
                    self._waiting.append(self._metric(to_key(name), value, at, summary.steps))
        self.flush()
        status = "KILLED" if summary is None or summary.exit == 130 else "FINISHED" if summary.exit == 0 else "FAILED"
        self._client.set_terminated(self._run, status)
        return f"run {record.info.run} is in MLflow: {self.uri}, run {self._run}"


def to_key(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]
