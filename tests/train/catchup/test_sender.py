"""Sender and receiver of two runs in one process: the stream comes to the same bits, or is refused with a reason."""

from typing import Any

import pytest
import torch
from catchup_sides import Side

from shoal.core.errors import Evicted
from shoal.train.catchup import receiver as receiver_module
from shoal.train.catchup import sender as sender_module
from shoal.train.catchup.receiver import CatchUpReceiver
from shoal.train.catchup.sender import CHANGED, CatchUpSender, StreamRest
from shoal.train.catchup.update import UPDATE, bulk, proof
from shoal.train.checkpoint.shard import parse, pieces
from shoal.train.checkpoint.snapshot import common


class Table:
    """Server and client in one: items pass over it when the test says so."""

    def __init__(self) -> None:
        self.wanted = ["w7.0"]
        self.given: list[bytes] = []
        self.passed = self.size = 0
        self.hopeless = ""
        self.stuck: list[str] = []
        self.dropped: list[str] = []
        self.lost = False

    def asked(self) -> list[str]:
        return self.wanted

    def open(self, member: str) -> None:
        pass

    def serves(self, member: str) -> bool:
        return member in self.wanted

    def give(self, member: str, data: bytes) -> int:
        self.given.append(data)
        return len(self.given) - 1

    def withdraw(self, member: str, data: bytes) -> None:
        self.given[self.passed :] = [data]

    def arrived(self, member: str) -> int:
        return self.passed

    def broken(self, member: str) -> bool:
        return self.lost

    def stalled(self, member: str) -> bool:
        return member in self.stuck

    def drop(self, member: str) -> None:
        self.dropped.append(member)

    def close(self) -> None:
        pass

    def follow(self, offer: object) -> bool:
        return False

    @property
    def pending(self) -> int:
        return len(self.given) - self.passed

    def items(self) -> list[bytearray]:
        new, self.passed = self.given[self.passed :], len(self.given)
        return [bytearray(data) for data in new]


@pytest.fixture
def table() -> Table:
    return Table()


def lending(side: Side, table: Table) -> CatchUpSender:
    sender = CatchUpSender(table, [side.joined])  # type: ignore[arg-type]
    side.optimizer.register_step_pre_hook(lambda *_: sender.updating(side.joined, side.optimizer, False))
    side.optimizer.register_step_post_hook(lambda *_: sender.updated())
    return sender


def begun(here: Side, there: Side, table: Table) -> tuple[CatchUpSender, CatchUpReceiver]:
    """The state is on the table, and no update yet."""
    sender = lending(here, table)
    for _ in range(2):
        here.step()
        sender.between()
    assert len(table.given) == 1
    return sender, CatchUpReceiver(table, there.joined)  # type: ignore[arg-type]


def proved(here: Side, there: Side, table: Table) -> tuple[CatchUpSender, CatchUpReceiver]:
    """The receiver holds what the sender has."""
    sender, receiver = begun(here, there, table)
    here.step()
    sender.between()
    assert not receiver.receive(None)
    assert receiver.proved
    sender.between()
    return sender, receiver


def halve(side: Side) -> None:
    with torch.no_grad():
        next(iter(side.model.parameters())).mul_(0.5)


def test_a_stream_comes_to_the_senders_bits_and_the_rest_is_small(sides: Any, table: Table) -> None:
    here, there = sides(seed=1), sides(seed=2)
    here.step()
    sender, receiver = lending(here, table), CatchUpReceiver(table, there.joined)  # type: ignore[arg-type]
    sender.between()
    assert not table.given, "an update is weighed first"
    here.step()
    sender.between()
    for _ in range(3):
        here.step()
        assert receiver.receive(None) or receiver.proved
        sender.between()
    assert not receiver.receive(None)
    assert receiver.proved
    sender.between()
    assert sender.rest("w7.0") == StreamRest(3, {}), "all has arrived"
    here.step()
    assert sender.rest("w7.0") == StreamRest(4, {}), "the last is on the way in the stream, and is not sent twice"
    table.lost = True
    rest = sender.rest("w7.0")
    assert isinstance(rest, StreamRest)
    assert list(rest.updates) == [4]
    assert sum(map(len, rest.updates.values())) < sum(map(len, table.given)) / 50
    tensors = handed(rest)
    receiver.rest(tensors, {"stream": proof(bulk([here.joined]))})
    wanted = {name: tensor for name, tensor in common([here.joined])[0].items() if name in tensors}
    assert len(wanted) == len(tensors) == len(bulk([here.joined])) == 2, "one weight, and its momentum"
    assert all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())
    assert sender.rest("w8.0") == "its state was streamed by another member"


def handed(rest: StreamRest) -> dict[str, torch.Tensor]:
    return {f"{UPDATE}{n}": torch.frombuffer(bytearray(data), dtype=torch.uint8) for n, data in rest.updates.items()}


def enter(sender: CatchUpSender, receiver: CatchUpReceiver, here: Side) -> None:
    """It comes to the sender's bits with what it has and what it is told at last."""
    rest = sender.rest("w7.0")
    assert isinstance(rest, StreamRest), rest
    tensors, texts = handed(rest), {"stream": proof(bulk([here.joined])), "through": str(rest.through)}
    assert not receiver.lacks(tensors, texts)
    receiver.rest(tensors, texts)


def test_a_stream_counts_though_a_view_was_made_without_the_newcomer(sides: Any, table: Table) -> None:
    """On a busy machine a member may have begun the step that the newcomer was to enter before."""
    here = sides()
    sender, receiver = proved(here, sides(seed=2), table)
    for _ in range(2):
        here.step()
        sender.between()
        table.wanted = []  # the server has closed, and nobody asks in the next view
        sender.change(["w0.0", "w1.0"])
    given = len(table.given)
    for _ in range(2):
        here.step()
        sender.between()
    assert len(table.given) == given, "no link leads to it"
    enter(sender, receiver, here)
    assert receiver.updates == 5
    sender.change(["w0.0", "w1.0", "w7.0"])
    assert sender.rest("w7.0") == "its state was streamed by another member", "it is over with its entry"


def test_a_stream_counts_though_the_newcomer_waited_long_to_be_let_in(sides: Any, table: Table) -> None:
    """It asks for nothing more once it has enough."""
    here = sides()
    sender, receiver = proved(here, sides(seed=2), table)
    table.wanted = []
    for _ in range(3):
        sender.between()
        here.step()
    enter(sender, receiver, here)


def test_a_stream_of_an_earlier_view_ends_as_others_do(sides: Any, table: Table) -> None:
    here = sides()
    sender, _ = proved(here, sides(seed=2), table)
    sender.change(["w0.0"])
    table.wanted = []
    for _ in range(9):
        here.step(share=1.0)
    assert "updates wait" in str(sender.rest("w7.0"))


def test_a_newcomer_that_takes_nothing_is_dropped_and_nothing_more_waits_for_it(sides: Any, table: Table) -> None:
    here = sides()
    sender, _ = begun(here, sides(seed=2), table)
    here.step()
    table.stuck = ["w7.0"]
    sender.between()
    given = len(table.given)
    for _ in range(3):
        here.step()
        sender.between()
    assert table.dropped == ["w7.0"]
    assert len(table.given) == given, "nor is it begun again"
    assert "took nothing" in str(sender.rest("w7.0"))


def refusal(table: Table) -> str:
    return parse(table.given[-1])[1]["why"]


def test_where_the_exchange_fills_the_step_large_updates_are_not_streamed(sides: Any, table: Table) -> None:
    here = sides()
    sender = lending(here, table)
    sender.between()
    here.joined.synchronizer.spent.wait += 3600.0
    here.step(share=1.0)
    sender.between()
    assert "the link has no room" in refusal(table)
    assert len(table.given) == 1, "the state did not travel"
    assert "a step changes much" in str(sender.rest("w7.0"))
    receiver = CatchUpReceiver(table, sides().joined)  # type: ignore[arg-type]
    assert not receiver.receive(None)
    assert "a step changes much" in receiver.why


def test_where_the_link_is_idle_large_updates_are_streamed(sides: Any, table: Table) -> None:
    here, there = sides(seed=1), sides(seed=2)
    sender, receiver = lending(here, table), CatchUpReceiver(table, there.joined)  # type: ignore[arg-type]
    sender.between()
    for _ in range(6):
        here.step(share=1.0)
        sender.between()
        receiver.receive(None)
    assert receiver.proved
    here.step(share=1.0)
    enter(sender, receiver, here)
    assert receiver.updates == 6
    assert proof(bulk([there.joined])) == proof(bulk([here.joined]))


def test_a_newcomer_waits_for_updates_that_are_on_the_way(sides: Any, table: Table) -> None:
    here = sides()
    sender, receiver = proved(here, sides(seed=2), table)
    receiver.catch_up()
    arrived = table.items
    table.items = list  # type: ignore[method-assign]
    here.step()
    rest = sender.rest("w7.0")
    assert isinstance(rest, StreamRest)
    assert receiver.lacks({}, {"through": str(rest.through)})
    table.items = arrived  # type: ignore[method-assign]
    assert not receiver.lacks({}, {"through": str(rest.through)})


def test_a_newcomer_that_is_slower_than_the_others_does_not_ask(
    sides: Any, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = sides()
    sender, receiver = begun(here, sides(seed=2), table)
    here.step()
    sender.between()
    use = receiver._use

    def slowly(data: bytes) -> None:
        use(data)
        for _ in range(4):
            here.step()

    receiver._use = slowly  # type: ignore[method-assign]
    assert all(receiver.receive(None) for _ in range(3))
    assert receiver.proved
    monkeypatch.setattr(receiver_module, "PATIENCE", -1.0)
    assert not receiver.receive(None), "it gives the stream up"
    assert "updates came while" in receiver.why
    assert not receiver.proved


def test_a_newcomer_that_was_slow_for_a_while_asks_when_it_is_quick(sides: Any, table: Table) -> None:
    here = sides()
    sender, receiver = begun(here, sides(seed=2), table)
    for _ in range(40):
        here.step()
        sender.between()
    assert not receiver.receive(None)
    assert receiver.updates == 40


def test_a_small_state_is_not_lent(sides: Any, table: Table) -> None:
    lending(sides(size=64), table).between()
    assert "the state is small" in refusal(table)


def test_a_stream_is_withdrawn_when_as_much_as_the_state_waits_for_the_link(sides: Any, table: Table) -> None:
    here = sides()
    sender, receiver = begun(here, sides(seed=2), table)
    for _ in range(9):
        here.step(share=1.0)
        sender.between()
    assert "bytes of updates wait for the link" in refusal(table)
    assert table.pending == 1, "nothing but the refusal is still on its way"
    assert not receiver.receive(None)
    assert "wait for the link" in receiver.why
    assert "wait for the link" in str(sender.rest("w7.0"))


def test_a_stream_is_withdrawn_when_all_its_updates_are_many_times_the_state(sides: Any, table: Table) -> None:
    here = sides()
    sender, receiver = begun(here, sides(seed=2), table)
    for _ in range(33):
        here.step(share=1.0)
        receiver.catch_up()
        sender.between()
    assert "updates are" in refusal(table)


def test_in_short_steps_the_others_stand_still_for_a_moment_if_a_stream_falls_behind(
    sides: Any, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = sides()
    naps: list[float] = []
    monkeypatch.setattr(sender_module.time, "sleep", naps.append)
    sender, receiver = begun(here, sides(seed=2), table)
    here.step(share=1.0)
    sender.between()
    here.step(share=0.1)
    sender.between()
    assert not naps, "the state is still on its way"
    receiver.catch_up()
    here.step(share=1.0)
    sender.between()
    assert not naps, "it lacks the last update only"
    here.step(share=0.1)
    monkeypatch.setattr(sender_module.time, "sleep", lambda seconds: (naps.append(seconds), receiver.catch_up()))
    sender.between()
    assert len(naps) == 1, "until it has arrived"


def test_a_proof_fails_where_something_else_has_changed_the_weights(sides: Any, table: Table) -> None:
    here = sides()
    sender, receiver = begun(here, sides(seed=2), table)
    here.step()
    halve(here)
    sender.between()
    assert not receiver.receive(None)
    assert receiver.why == "updates come to other bits here"


def test_a_stream_is_withdrawn_when_something_else_changes_the_weights_later(sides: Any, table: Table) -> None:
    here = sides()
    sender, _ = proved(here, sides(seed=2), table)
    halve(here)
    assert sender.rest("w7.0") == CHANGED, "it is given whole"
    here.step()
    assert refusal(table) == "something but the optimizer changes the weights"
    assert sender.rest("w7.0") == CHANGED


def test_what_nobody_counts_ends_the_newcomer_and_nothing_is_streamed_after_that(sides: Any, table: Table) -> None:
    here = sides()
    sender, receiver = proved(here, sides(seed=2), table)
    next(iter(here.model.parameters())).data.mul_(0.5)
    assert isinstance(sender.rest("w7.0"), StreamRest)
    with pytest.raises(Evicted, match="start this worker again"):
        receiver.rest({}, {"stream": proof(bulk([here.joined]))})
    sender.change(["w0.0", "w7.0"])  # the view in which it entered
    sender.change(["w0.0"])
    table.wanted = ["w7.1"]
    sender.between()
    assert refusal(table) == "w7.0 was lost right after the state was streamed to it"


@pytest.mark.parametrize("steps", [0, 1], ids=["in a later view", "after a step in the same view"])
def test_who_is_lost_later_is_not_the_streams_fault(sides: Any, table: Table, steps: int) -> None:
    here = sides()
    sender, _ = proved(here, sides(seed=2), table)
    assert isinstance(sender.rest("w7.0"), StreamRest)
    sender.change(["w0.0", "w7.0"])
    for _ in range(steps):
        here.step()  # its exchange was complete, so the newcomer took part
    if not steps:
        sender.change(["w0.0", "w7.0", "w3.0"])
    sender.change(["w0.0"])
    table.wanted = ["w7.1"]
    given = len(table.given)
    for _ in range(2):
        here.step()
        sender.between()
    assert parse(table.given[given])[1]["kind"] == "state"


def test_another_model_is_told_so(sides: Any, table: Table) -> None:
    there = sides(size=256)
    receiver = CatchUpReceiver(table, there.joined)  # type: ignore[arg-type]
    tensors, texts = common([sides().joined])
    table.give("w7.0", b"".join(pieces(tensors, texts | {"kind": "state"})))
    assert not receiver.receive(None)
    assert "has the model changed since?" in receiver.why


def test_a_newcomer_that_is_gone_is_streamed_nothing_more(sides: Any, table: Table) -> None:
    here = sides()
    sender, _ = begun(here, sides(seed=2), table)
    table.wanted = []
    sender.between()
    given = len(table.given)
    here.step()
    sender.between()
    assert len(table.given) == given


def test_what_is_streamed_has_the_names_of_a_snapshot(sides: Any) -> None:
    here = sides()
    here.step()
    torch.optim.lr_scheduler.StepLR(here.optimizer, 1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(here.optimizer, 0.9)  # its state comes after the optimizer's
    tensors, _ = common([here.joined])
    streamed = bulk([here.joined])
    assert len(streamed) == 2
    assert all(tensor.data_ptr() == tensors[name].data_ptr() for name, tensor in streamed.items())
    assert scheduler.get_last_lr()
