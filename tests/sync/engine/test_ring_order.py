"""Whatever is urgent, all of one exchange leaves before any of the next: a peer cannot begin that one without it."""

import itertools
from types import SimpleNamespace
from typing import Any

import torch

from shoal.sync.engine.links import LinkEngine
from shoal.transport.tasks import CollectiveTask
from shoal.wire.bucket import BucketSpace


def engine_that_notes(tasks: list[CollectiveTask]) -> LinkEngine:
    view = SimpleNamespace(size=2, ranks=[0, 1])
    mesh = SimpleNamespace(view=view, submit=tasks.append)
    group: Any = SimpleNamespace(mesh=mesh, new_channel=lambda: 1, session=SimpleNamespace(elastic=False))
    engine = LinkEngine(group)
    engine.open([BucketSpace(4, torch.float32, torch.device("cpu"))] * 4)
    return engine


def test_what_is_left_of_a_step_goes_before_the_urgent_of_the_next() -> None:
    tasks: list[CollectiveTask] = []
    engine = engine_that_notes(tasks)
    # the first layers were last in the backward pass; bucket 3 is a word all wait for
    engine.set_priorities([3, 2, 1, 0])
    for _ in range(3):
        engine.prepare()
        for index in range(4):
            engine.start(index)
    steps = [[task.urgency for task in tasks[begin : begin + 4]] for begin in range(0, 12, 4)]
    for urgencies in steps:
        assert urgencies[3] == 0, "words overtake all"
        assert urgencies[2] < urgencies[1] < urgencies[0], "inside a step, by need"
    for before, after in itertools.pairwise(steps):
        assert max(before[:3]) < min(after[:3])


def test_without_an_order_all_are_equal() -> None:
    tasks: list[CollectiveTask] = []
    engine = engine_that_notes(tasks)
    for _ in range(2):
        engine.prepare()
        engine.start(0)
    assert [task.urgency for task in tasks] == [0, 0]
