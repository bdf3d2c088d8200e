"""The twelve quantities by which Shi et al. describe a run of data-parallel training, from its record.

Shi, Wang & Chu, "Performance Modeling and Evaluation of Distributed Deep Learning Frameworks on GPUs", 2018, table I.
Times are mean seconds per step over all workers. The parts add up to an iteration: input + host copy + forward +
backward + aggregation + update + other, where `aggregation` is what was not hidden behind the backward pass.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from shoal.core.events import SECONDS
from shoal.watch.worker import WorkerRecord


class RunQuantities(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's step is made of."""

    workers: int
    workers_per_host: int
    """The most on any host."""
    samples_per_worker_and_batch: float
    iteration: float
    input: float
    """Waiting for the loader."""
    host_copy: float | None
    """Copying a batch to the device: 0 on the CPU; None elsewhere, where the script's own copies are not seen."""
    forward: float
    backward: float
    backward_by_layer: dict[str, float]
    update: float
    aggregation: float
    """Packing, exchanging and waiting for others, as far as the backward pass did not hide it."""
    aggregation_by_layer: dict[str, float]
    """From a layer's bucket being full to the mean being back, hidden or not."""
    other: float
    """After the update: logging, schedulers. Not one of the twelve; with it the parts add up."""


def quantities(workers: list[WorkerRecord]) -> RunQuantities:
    """The quantities of the workers that made steps."""
    trained = [worker for worker in workers if worker.steps]
    hosts = Counter(worker.host for worker in trained)
    both = _mean(trained, lambda w: w.phases.forward_backward)
    forward = _mean(trained, lambda w: w.forward)
    return RunQuantities(
        workers=len(workers),
        workers_per_host=max(hosts.values(), default=0),
        samples_per_worker_and_batch=_mean(trained, lambda w: w.samples / w.steps),
        iteration=_mean(trained, lambda w: w.seconds / w.steps),
        input=_mean(trained, lambda w: w.phases.load),
        host_copy=0.0 if all(worker.device == "cpu" for worker in trained) else None,
        forward=forward,
        # The record has the whole and the part until the model returned.
        backward=round(both - forward, SECONDS),
        backward_by_layer=_by_layer([worker.backward_by_layer for worker in trained]),
        update=_mean(trained, lambda w: w.phases.update),
        aggregation=_mean(trained, lambda w: w.phases.exchange_wait + w.phases.encode),
        aggregation_by_layer=_by_layer([worker.aggregation_by_layer for worker in trained]),
        other=_mean(trained, lambda w: w.phases.other),
    )


def _mean(workers: list[WorkerRecord], figure: Callable[[WorkerRecord], float]) -> float:
    """Over steps: a worker with more of them counts more."""
    steps = sum(worker.steps for worker in workers)
    return round(sum(figure(worker) * worker.steps for worker in workers) / max(1, steps), SECONDS)


def _by_layer(measured: list[dict[str, float]]) -> dict[str, float]:
    found = [each for each in measured if each]
    layers = dict.fromkeys(layer for each in found for layer in each)
    return {layer: round(sum(each.get(layer, 0.0) for each in found) / len(found), SECONDS) for layer in layers}
