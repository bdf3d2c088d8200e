"""Every batch is answered once, whatever replicas are lost, in whatever order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.serve.errors import ServerBusy
from shoal.serve.replicas.batches import MOST_TRIES, BatchDealer, KnownReplica, ReplicaBatch
from shoal.serve.tensors import Tensors

OUTPUTS: Tensors = {"y": np.zeros(1, np.float32)}


def dealer_with(*names: bytes, slots: int = 1) -> BatchDealer:
    dealer = BatchDealer()
    for name in names:
        dealer.replicas[name] = KnownReplica(name.decode(), slots, frozenset({1}))
    return dealer


def batch(serial: int = 1) -> ReplicaBatch:
    return ReplicaBatch(serial, b"", due=60.0)


def test_batches_go_to_the_least_busy_replica_that_holds_the_program() -> None:
    dealer = dealer_with(b"a", b"b", slots=2)
    dealer.replicas[b"c"] = KnownReplica("c", 8)  # holds nothing yet
    for _ in range(5):
        dealer.add(batch())
    given_ = [route for route, _ in dealer.deal()]
    assert sorted(given_) == [b"a", b"a", b"b", b"b"]
    assert given_[0] != given_[1]
    assert (dealer.width(1), dealer.width(2), dealer.deal()) == (4, 0, [])


def test_what_a_lost_replica_was_asked_goes_to_another_before_what_came_later() -> None:
    dealer = dealer_with(b"a", b"b")
    first, second, later = batch(), batch(), batch()
    for each in (first, second, later):
        dealer.add(each)
    asked = dict(dealer.deal())
    dealer.lose(b"a")
    dealer.finish(b"b", asked[b"b"], OUTPUTS)
    assert dealer.deal() == [(b"b", asked[b"a"])]
    assert not later.answer.done()


def test_an_answer_of_a_replica_that_counted_as_lost_belongs_to_no_batch() -> None:
    dealer = dealer_with(b"a")
    dealer.add(batch())
    ((_, asked),) = dealer.deal()
    number = asked.number
    dealer.lose(b"a")
    dealer.replicas[b"a"] = KnownReplica("a", 1, frozenset({1}))
    assert dealer.find(b"a", number) is None
    dealer.deal()
    assert dealer.find(b"a", number) is None  # it was asked again, under another number
    assert dealer.find(b"a", asked.number) is asked


def test_a_batch_that_replicas_are_lost_with_is_given_up() -> None:
    dealer = dealer_with(*(bytes([at]) for at in range(MOST_TRIES + 1)))
    dealer.add(each := batch())
    for _ in range(MOST_TRIES):
        ((route, _),) = dealer.deal()
        dealer.lose(route)
    assert dealer.deal() == []
    with pytest.raises(ServerBusy, match="3 replicas were lost"):
        each.answer.result(0)


def test_a_batch_that_nobody_takes_is_refused_in_time() -> None:
    dealer = BatchDealer()
    dealer.add(each := batch())
    dealer.expire(59.0)
    assert not each.answer.done()
    dealer.expire(60.0)
    with pytest.raises(ServerBusy, match="no replica answers"):
        each.answer.result(0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "deal", "finish", "lose", "join"]), st.integers(0, 9)), max_size=80))
def test_under_any_schedule_every_batch_ends_once_and_none_is_forgotten(schedule: list[tuple[str, int]]) -> None:
    dealer, names, made = BatchDealer(), 0, list[ReplicaBatch]()
    for what, at in schedule:
        routes = sorted(dealer.replicas)
        route = routes[at % len(routes)] if routes else None
        if what == "add":
            made.append(batch())
            dealer.add(made[-1])
        elif what == "deal":
            dealer.deal()
        elif what == "join":
            names += 1
            dealer.replicas[b"%d" % names] = KnownReplica(str(names), 1 + at % 2, frozenset({1}))
        elif what == "lose" and route is not None:
            dealer.lose(route)
        elif what == "finish" and route is not None and dealer.replicas[route].asked:
            dealer.finish(route, next(iter(dealer.replicas[route].asked.values())), OUTPUTS)
        for known in dealer.replicas.values():
            assert len(known.asked) <= known.slots
    dealer.replicas[b"last"] = KnownReplica("last", len(made) + 1, frozenset({1}))
    dealer.deal()
    for route, known in list(dealer.replicas.items()):
        for each in list(known.asked.values()):
            dealer.finish(route, each, OUTPUTS)
    assert all(each.answer.done() for each in made)
