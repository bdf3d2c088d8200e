"""Tables of rows on servers: the bits of one worker, every push once, and rows that nobody used cost nothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shoal.core.errors import PayloadError, UsageError
from shoal.membership.session import FixedSession
from shoal.sync.server.host import ShardHost
from shoal.sync.server.messages import (
    FailedReply,
    LoadRowsRequest,
    OpenRequest,
    PullRequest,
    PushReply,
    PushRequest,
    RoundRequest,
    ShardReply,
    ShardRequest,
    TableShape,
    ValuesHead,
    WaitReply,
    encode,
)
from shoal.sync.server.row_client import RowClient, TableSpec
from shoal.sync.server.row_table import RowTable, draw_rows
from shoal.sync.server.rules.adagrad import AdagradRule
from shoal.sync.server.rules.table import make_rule

Answer = tuple[str, int, ShardReply, Sequence[Any]]
ROWS, WIDTH = 50, 3


def shape(rows: int = ROWS, first: int = 0, stride: int = 1, scale: float = 1.0) -> TableShape:
    return TableShape(rows, WIDTH, first, stride, 7, scale)


def flat_bytes(array: Any) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


class TableHost:
    """One host with a table, and what it has answered."""

    def __init__(self, members: Sequence[str], bound: int | None, rule: str = "add", **settings: float) -> None:
        self.answers: list[Answer] = []
        self.number = 0
        self.host = ShardHost(lambda *answer: self.answers.append(answer))
        for member in members:
            request = OpenRequest(0, rule, settings, bound, 1, list(members), table=shape(scale=0.0))
            self.ask(member, request, [np.zeros(0, np.float32)])
        self.answers.clear()

    def ask(self, member: str, request: ShardRequest, arrays: Sequence[Any] = ()) -> int:
        self.number += 1
        self.host.handle(member, self.number, encode(request), [flat_bytes(a) for a in arrays])
        return self.number

    def push(self, member: str, clock: int, rows: Sequence[int], values: Any, weight: float = 1.0) -> ShardReply:
        number = self.ask(member, PushRequest(clock, weight), [np.array(rows, np.int64), np.float32(values)])
        return next(reply for _, n, reply, _ in reversed(self.answers) if n == number)

    def pull(self, member: str, clock: int, rows: Sequence[int]) -> int:
        return self.ask(member, PullRequest(clock), [np.array(rows, np.int64)])

    def values(self, number: int) -> Any:
        found = (a[0] for _, n, r, a in self.answers if n == number and isinstance(r, ValuesHead))
        return next((np.asarray(each).reshape(-1, WIDTH) for each in found), None)


def ones(rows: int, by: float = 1.0) -> Any:
    return np.full((rows, WIDTH), by, np.float32)


def test_first_values_depend_on_the_row_alone() -> None:
    whole = draw_rows(shape(), np.arange(ROWS))
    for servers in (2, 3):
        for first in range(servers):
            table = RowTable(shape(first=first, stride=servers), 0)
            assert np.array_equal(table.read(np.arange(table.size)), whole[first::servers])
    many = draw_rows(shape(100_000), np.arange(100_000))
    assert abs(float(many.mean())) < 0.01
    assert abs(float(many.std()) - 1) < 0.01
    assert len(np.unique(many)) > 0.99 * many.size / 2


def test_pushes_of_random_schedules_count_once_and_are_conserved() -> None:
    generator = np.random.default_rng(3)
    for _ in range(30):
        members = [f"m{n}" for n in range(3)]
        world, clocks, total = TableHost(members, None), dict.fromkeys(members, 0), np.zeros((ROWS, WIDTH), np.float32)
        for _ in range(40):
            member = str(generator.choice(members))
            rows = np.flatnonzero(generator.random(ROWS) < 0.1)
            values = generator.integers(-9, 9, (len(rows), WIDTH)).astype(np.float32)
            total[rows] += values
            for _ in range(int(generator.integers(1, 3))):  # a push that comes again changes nothing
                outcome = world.push(member, clocks[member], list(rows), values)
                assert isinstance(outcome, PushReply)
            clocks[member] += 1
        number = world.pull("m0", clocks["m0"], range(ROWS))
        assert np.array_equal(world.values(number), total)


def test_a_round_of_three_is_one_step_with_all_samples() -> None:
    generator = np.random.default_rng(5)
    world = TableHost(["a", "b", "c"], 0, "adagrad", rate=0.5)
    table, rule = RowTable(shape(scale=0.0), 1), AdagradRule(0.5)
    for clock in range(6):
        whole = np.zeros((ROWS, WIDTH), np.float32)
        touched = set[int]()
        for member in generator.permutation(["c", "a", "b"]):
            rows = np.flatnonzero(generator.random(ROWS) < 0.2)
            values = generator.integers(-4, 5, (len(rows), WIDTH)).astype(np.float32)
            world.push(str(member), clock, list(rows), values, weight=0.25)
            whole[rows] += np.float32(0.25) * values
            touched |= set(map(int, rows))
        places = np.array(sorted(touched), np.int64)
        table.update(rule, places, whole[places], clock)
    number = world.pull("a", 6, range(ROWS))
    assert np.array_equal(world.values(number), table.read(np.arange(ROWS)))


def test_the_bound_holds_and_nobody_waits_for_a_lost_member() -> None:
    world = TableHost(["a", "b"], 1)
    world.push("a", 0, [3], ones(1))
    first = world.pull("a", 1, [3])
    assert np.array_equal(world.values(first), ones(1))
    world.push("a", 1, [3], ones(1))
    second = world.pull("a", 2, [3, 4])
    assert world.values(second) is None
    assert isinstance(world.answers[-1][2], WaitReply)
    world.ask("a", RoundRequest(0, 0, 2, ["a"]))
    assert np.array_equal(world.values(second), [[2] * WIDTH, [0] * WIDTH])


def test_a_newcomer_begins_where_the_others_are() -> None:
    world = TableHost(["a", "b"], 0)
    for clock in range(3):
        for member in "ab":
            world.push(member, clock, [1], ones(1))
    request = OpenRequest(0, "add", {}, 0, 2, ["a", "b", "c"], table=shape(scale=0.0))
    world.ask("c", request, [np.zeros(0, np.float32)])
    for member in "abc":
        world.push(member, 3, [1], ones(1))
    assert np.array_equal(world.values(world.pull("c", 4, [1])), ones(1, 9.0))


@pytest.mark.parametrize(
    ("rows", "values", "said"),
    [
        ([ROWS], ones(1), f"names row {ROWS} of {ROWS}"),
        ([-1], ones(1), "names row -1"),
        ([4, 4], ones(2), "do not ascend"),
        ([4], ones(2), "pushes 6 numbers for 1 rows"),
    ],
)
def test_rows_that_are_none_are_refused_and_cost_only_their_sender(rows: list[int], values: Any, said: str) -> None:
    world = TableHost(["a", "b"], None)
    reply = world.push("a", 0, rows, values)
    assert isinstance(reply, FailedReply)
    assert said in reply.text
    assert isinstance(world.push("b", 0, [1], ones(1)), PushReply)
    assert world.values(world.pull("b", 1, range(ROWS))).sum() == WIDTH
    assert isinstance(world.push("a", 0, [1], ones(1)), PushReply)


def test_pulls_of_rows_that_are_none_and_late_loads_are_refused() -> None:
    world = TableHost(["a"], None)
    world.pull("a", 0, [ROWS])
    assert isinstance(world.answers[-1][2], FailedReply)
    world.push("a", 0, [1], ones(1))
    world.ask("a", LoadRowsRequest(0), [np.array([1]), ones(1)])
    reply = world.answers[-1][2]
    assert isinstance(reply, FailedReply)
    assert "pushes have changed" in reply.text


def test_numbers_that_are_not_finite_change_nothing() -> None:
    world = TableHost(["a", "b"], None)
    outcomes = [world.push("a", clock, [1], ones(1, np.nan)) for clock in range(4)]
    assert [o.outcome for o in outcomes if isinstance(o, PushReply)] == ["REFUSED"] * 2 + ["QUARANTINED"] * 2
    assert not world.values(world.pull("b", 0, [1])).any()


def test_a_rule_that_changes_unused_rows_is_refused() -> None:
    world = TableHost([], None)
    request = OpenRequest(1, "adam", {"rate": 0.1}, None, 1, ["a"], table=shape())
    world.ask("a", request, [np.zeros(0, np.float32)])
    reply = world.answers[-1][2]
    assert isinstance(reply, FailedReply)
    assert "tables take add, sgd or adagrad" in reply.text
    assert make_rule("sgd", rate=0.1).zero_changes_nothing


class DirectConnection:
    """To several hosts in this process; counts the bytes of arrays."""

    def __init__(self, servers: int) -> None:
        self.hosts = [TableHost([], None) for _ in range(servers)]
        self.sent = self.got = 0

    def __len__(self) -> int:
        return len(self.hosts)

    def take_channel(self) -> int:
        return 0

    def declare(self, channel: int, tensors: Any) -> None:
        pass

    def send(self, server: int, request: ShardRequest, arrays: Sequence[Any] = ()) -> int:
        self.sent += sum(memoryview(array).nbytes for array in arrays)
        return self.hosts[server].ask("w0", request, arrays)

    def wait(self, server: int, number: int, look: Any) -> Any:
        look()
        _, _, reply, arrays = next(a for a in reversed(self.hosts[server].answers) if a[1] == number)
        if isinstance(reply, FailedReply):
            raise PayloadError(reply.text)
        self.got += sum(memoryview(array).nbytes for array in arrays)
        return reply, [flat_bytes(array) for array in arrays]

    def take_slowest(self, number: int) -> list[str]:
        return []


def client(servers: int, **more: Any) -> tuple[RowClient, DirectConnection]:
    session = FixedSession(0, 1)
    connection = DirectConnection(servers)
    for host in connection.hosts:
        handle = host.host.handle
        host.host.handle = lambda _, *rest, handle=handle: handle(session.member, *rest)  # type: ignore[method-assign]
    made = RowClient(TableSpec("words", ROWS, WIDTH, seed=7, scale=1.0, **more), connection, session)  # type: ignore[arg-type]
    made.open()
    return made, connection


def test_nothing_is_asked_of_a_table_before_it_is_open() -> None:
    """A worker that waits for the others looks at its view; between hosts a server refuses what comes too early."""
    _, connection = client(2)
    assert all(len(host.answers) == 1 for host in connection.hosts)


def test_bytes_follow_the_rows_that_are_used() -> None:
    table, connection = client(2)
    rows = np.array([3, 8, 20])
    table.pull(rows)
    assert (connection.sent, connection.got) == (8 * 3, 4 * WIDTH * 3)
    table.push(rows, ones(3), 1.0)
    assert connection.sent == 8 * 3 + (8 + 4 * WIDTH) * 3


def test_a_table_goes_on_with_another_number_of_servers() -> None:
    first, _ = client(3, rule="adagrad", settings={"rate": 0.1})
    rows = np.array([0, 3, 4, 11, ROWS - 1])
    first.push(rows, np.arange(15, dtype=np.float32).reshape(5, WIDTH) - 7, 1.0)
    blocks = [block for part in range(2) for block in first.read(part, 2)]
    found = np.concatenate([np.frombuffer(block[0], np.int64) for block in blocks])
    assert sorted(found) == list(rows)  # what nobody used takes no room
    again, _ = client(2, rule="adagrad", settings={"rate": 0.1})
    for numbers, *arrays in blocks:
        again.load(np.frombuffer(numbers, np.int64), [np.frombuffer(a, np.float32) for a in arrays])
    for each in (first, again):
        each.push(rows, ones(5), 1.0)
    assert np.array_equal(first.pull(np.arange(ROWS)), again.pull(np.arange(ROWS)))


def test_a_row_that_is_none_is_named_before_anything_is_sent() -> None:
    table, connection = client(2)
    before = connection.sent
    for row in (-1, ROWS):
        with pytest.raises(UsageError, match=f"row {row} of table 'words', which has rows 0 to {ROWS - 1}"):
            table.pull(np.array([row]))
    assert connection.sent == before
