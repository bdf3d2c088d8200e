"""A worker gets its batches in order, each once, whatever becomes of the servers, and waits no longer than needed."""

import random

import pytest
import torch
from torch.utils.data import Dataset
from virtual_data_servers import KEY, Numbers, VirtualTier, expected, serving

from shoal.core.errors import UsageError
from shoal.data.tier.batch_server import BatchServer
from shoal.data.tier.fetching import AHEAD, FIRST, LEAST, START
from shoal.data.tier.server_links import LinkEvent
from shoal.data.turn import PassKey


def test_batches_are_those_of_one_process_in_order() -> None:
    tier = VirtualTier.of(serving(seconds=0.3), serving(seconds=0.1), serving(seconds=0.2))
    assert torch.equal(torch.stack(tier.fetch(30)), expected(30))
    assert tier.fetcher.totals.local == 0
    assert sum(tier.fetcher.totals.batches) == 30
    assert min(tier.fetcher.totals.batches) > 0
    assert not tier.warnings


def test_more_servers_prepare_faster_until_training_is_the_limit() -> None:
    def seconds(servers: int) -> float:
        tier = VirtualTier.of(*(serving(seconds=0.4) for _ in range(servers)))
        tier.fetch(60, step=0.1)
        return tier.links.now

    one, two, four, eight = map(seconds, (1, 2, 4, 8))
    assert two < 0.55 * one
    assert four < 0.55 * two
    assert eight == pytest.approx(6.0 + 0.4, abs=0.05 * 6.0)  # 60 steps of 0.1 s, and the first batch is waited for


def test_requests_under_way_are_bounded() -> None:
    slow, pulled = serving(seconds=100.0), []
    tier = VirtualTier.of(slow, serving(seconds=100.0))

    def indices() -> object:
        for number in range(50):
            pulled.append(number)
            yield [number]

    next(tier.fetcher.fetch(tier.loader, KEY, indices()))  # type: ignore[arg-type]
    assert len(pulled) <= 2 * AHEAD


def test_a_killed_server_loses_no_batch_and_is_asked_again_when_it_is_back() -> None:
    tier = VirtualTier.of(serving(), serving())
    tier.links.at(0.55, lambda: tier.links.kill(1))
    tier.links.at(2.0, lambda: tier.links.restart(1))
    assert torch.equal(torch.stack(tier.fetch(60)), expected(60))
    assert tier.warnings == ["data server 1 is gone; its batches are prepared by others"]
    assert tier.fetcher.totals.lost == 1
    assert tier.fetcher.totals.local == 0
    assert tier.fetcher.totals.batches[1] > 10


def test_without_any_server_left_the_worker_prepares_its_batches_and_says_so_once() -> None:
    tier = VirtualTier.of(serving())
    tier.links.at(0.55, lambda: tier.links.kill(0))
    tier.links.at(0.56, lambda: tier.links.plans.clear())
    assert torch.equal(torch.stack(tier.fetch(20)), expected(20))
    assert tier.fetcher.totals.local == 15
    assert [text for text in tier.warnings if "prepares its batches itself" in text] == [tier.warnings[-1]]


def test_a_frozen_server_is_waited_for_once() -> None:
    tier = VirtualTier.of(serving(seconds=0.01), serving(seconds=0.01))
    tier.fetch(10)
    tier.links.freeze(0, 1e6)
    began = tier.links.now
    assert torch.equal(torch.stack(tier.fetch(40)), expected(40))
    assert tier.links.now - began < LEAST + 1.0
    assert tier.fetcher.totals.overdue == 1
    assert "data server 0 has not answered for" in tier.warnings[0]


def test_a_server_that_never_comes_delays_only_the_first_batch() -> None:
    tier = VirtualTier.of(serving(is_up=False))
    assert torch.equal(torch.stack(tier.fetch(20)), expected(20))
    assert tier.links.now == pytest.approx(START)


def test_a_pass_that_is_left_costs_the_next_one_nothing() -> None:
    tier = VirtualTier.of(serving())
    left = tier.fetcher.fetch(tier.loader, KEY, iter([[0], [1], [2]]))
    next(left)
    left.close()  # type: ignore[attr-defined]
    key = PassKey(0, 1, 0)
    assert torch.equal(torch.stack(tier.fetch(5, key)), expected(5, key))


def test_two_loaders_in_turns_get_their_own_batches() -> None:
    tier = VirtualTier.of(serving(), serving())
    passes = [tier.fetcher.fetch(tier.loader, KEY, iter([[i, i + 1] for i in range(n, n + 9)])) for n in (0, 100)]
    for number, (one, other) in enumerate(zip(*passes, strict=True)):
        assert (one[0, 0], other[0, 0]) == (number, 100 + number)


class Rotten(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 7:
            raise FileNotFoundError(2, "No such file", "7.png")
        return super().__getitem__(index)


def test_an_error_of_the_dataset_names_server_and_sample_and_keeps_its_type() -> None:
    tier = VirtualTier.of(serving(Rotten()))
    with pytest.raises(FileNotFoundError, match=r"data server 0, sample 7: .*7\.png") as caught:
        tier.fetch(10)
    assert "__getitem__" in caught.value.__notes__[0]


def test_a_class_that_an_answer_names_is_not_looked_up_outside_of_builtins() -> None:
    class OwnError(Exception):
        pass

    class Raising(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise OwnError("no")

    with pytest.raises(RuntimeError, match="sample 0: OwnError: no"):
        VirtualTier.of(serving(Raising())).fetch(1)


def test_a_batch_that_cannot_be_sent_is_refused_with_the_way_out() -> None:
    class Strange(Numbers):
        def __getitem__(self, index: int) -> object:  # type: ignore[override]
            return {"x": 1.0, "name": object}

    def first(samples: list[object]) -> object:
        return samples[0]

    server = serving(Strange())
    server.server._loaders[0]._collate = first
    with pytest.raises(UsageError, match=r"data server 0: batch\['name'\] is a .*collate_fn"):
        VirtualTier.of(server).fetch(1)


def test_a_server_with_another_dataset_is_found_out() -> None:
    class Other(Numbers):
        def __getitem__(self, index: int) -> torch.Tensor:
            return -super().__getitem__(index)

    tier = VirtualTier.of(serving(Other()), serving())
    tier.fetch(10)
    assert len([text for text in tier.warnings if "data server 0 prepares the samples" in text]) == 1


@pytest.mark.parametrize(
    ("server", "words"),
    [(serving(Numbers(999)), "has 999 samples, the worker's has 1000"), ("none", "has joined 0 loaders")],
)
def test_a_server_that_does_not_know_the_loader_is_asked_no_more(server: object, words: str) -> None:
    unfit = serving() if server == "none" else server
    if server == "none":
        unfit.server = BatchServer([])  # type: ignore[attr-defined]
    tier = VirtualTier.of(unfit, serving())  # type: ignore[arg-type]
    assert torch.equal(torch.stack(tier.fetch(20)), expected(20))
    assert len([text for text in tier.warnings if words in text]) == 1
    assert tier.fetcher.totals.batches[0] == 0


def test_a_server_that_sends_no_batch_is_not_asked_any_more() -> None:
    tier = VirtualTier.of(serving(), serving())
    garbage = [[b""], [b"\xff", b"", b""], [b"x" * 9] * 3]
    for number, frames in enumerate(garbage):
        tier.links.events.append(LinkEvent(0, "up"))
        tier.links.events.append(LinkEvent(0, "said", frames))
        assert torch.equal(torch.stack(tier.fetch(5)), expected(5)), number
    assert len([text for text in tier.warnings if "not asked any more" in text]) == 3


def test_a_worker_without_data_says_that_it_needs_the_servers() -> None:
    class Missing(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> torch.Tensor:
            raise FileNotFoundError("no data here")

    tier = VirtualTier.of(serving())
    tier.loader.preparer._dataset = Missing()
    assert torch.equal(torch.stack(tier.fetch(5)), expected(5))
    assert "cannot prepare batches itself (FileNotFoundError: no data here)" in tier.warnings[0]


@pytest.mark.parametrize("seed", range(30))
def test_batches_are_exact_whatever_servers_do(seed: int) -> None:
    draw = random.Random(seed)
    tier = VirtualTier.of(*(serving(seconds=draw.choice([0.01, 0.3, 2.0])) for _ in range(draw.randint(1, 4))))
    links, servers = tier.links, tier.links.servers
    for _ in range(draw.randint(1, 12)):
        number, second = draw.randrange(len(servers)), draw.uniform(0, 15)
        what = draw.choice(["kill", "kill", "restart", "freeze"])
        until = second + draw.choice([0.5, 5.0, 1e6])
        links.at(
            second,
            {
                "kill": lambda number=number: links.kill(number),
                "restart": lambda number=number: links.restart(number),
                "freeze": lambda number=number, until=until: links.freeze(number, until),
            }[what],
        )
    batches = [tier.fetch(25, PassKey(0, epoch, 0), step=draw.choice([0.0, 0.2])) for epoch in range(3)]
    for epoch, found in enumerate(batches):
        assert torch.equal(torch.stack(found), expected(25, PassKey(0, epoch, 0)))
    assert tier.fetcher.totals.received + tier.fetcher.totals.local == 75
    # each batch waits for at most every server in turn, as long as the slowest has ever taken
    assert links.now < 75 * len(servers) * (FIRST + 2 * AHEAD * 2.0)
