"""Shards over real sockets, under keys: no update lost or repeated, waits that end, lies that are refused."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from meshes import WAIT, kill, meshes

from shoal.core.errors import DeadlineError, PeerLost
from shoal.sync.server.client import ShardClient
from shoal.sync.server.cut import cut_into_shards
from shoal.sync.server.rules.table import make_rule
from shoal.sync.server.service import ShardService
from shoal.sync.server.shard import ParameterShard, PushOutcome
from shoal.transport.mesh import LinkMesh
from shoal.transport.messenger import CallFailed

SIZES = [5000, 3, 40]
SERVER = "0"


@contextmanager
def served(
    workers: int, bound: int | None, shards: int = 2, rule: str = "add"
) -> Iterator[tuple[list[LinkMesh], list[ShardService], list[list[ShardClient]]]]:
    """Mesh 0 is the server; the clients of each worker follow."""
    names = [str(rank) for rank in range(1, workers + 1)]
    cuts = cut_into_shards(SIZES, shards)
    with meshes(workers + 1) as made:
        services = [
            ShardService(
                made[0].messenger, number, ParameterShard(np.zeros(cut.size, np.float32), make_rule(rule), names, bound)
            )
            for number, cut in enumerate(cuts)
        ]
        clients = [
            [ShardClient(made[int(name)].messenger, name, SERVER, number, cut.size) for number, cut in enumerate(cuts)]
            for name in names
        ]
        yield made, services, clients


def together(bodies: Sequence[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001  (raised again below)
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not errors, errors


def steps(clients: Sequence[ShardClient], number: int, count: int, leads: list[int]) -> None:
    for clock in range(count):
        for client in clients:
            found = client.pull(clock, WAIT)
            leads.append(clock - found.minimum)
            update = np.full(client.size, 10**number, np.float32)
            assert client.push(clock, update, WAIT) is PushOutcome.APPLIED
            assert client.push(clock, update, WAIT) is PushOutcome.AGAIN


@pytest.mark.parametrize("bound", [0, 2, None])
def test_concurrent_pushes_of_whole_numbers_add_up_exactly(bound: int | None) -> None:
    leads: list[int] = []
    with served(3, bound) as (_, services, clients):
        together([lambda n=n, mine=mine: steps(mine, n, 6, leads) for n, mine in enumerate(clients)])
        for service in services:
            version, values = service.values()
            assert version == 18
            assert (values == 666).all()
    assert bound is None or max(leads) <= bound


def test_a_round_of_means_is_what_every_worker_pulls() -> None:
    with served(2, 0, rule="mean") as (_, _, clients):

        def body(mine: list[ShardClient], number: float) -> None:
            for clock in range(3):
                for client in mine:
                    client.push(clock, np.full(client.size, number + clock, np.float32), WAIT, weight=0.5)
                    assert (client.pull(clock + 1, WAIT).values == 2 + clock).all()

        together([lambda: body(clients[0], 1), lambda: body(clients[1], 3)])


def test_a_worker_that_is_killed_is_waited_for_no_longer_and_its_acknowledged_update_stays() -> None:
    with served(2, 0, shards=1) as (made, (service,), ((stays,), (lost,))):
        ones = np.ones(stays.size, np.float32)
        assert lost.push(0, ones, WAIT) is PushOutcome.APPLIED
        stays.push(0, ones, WAIT)
        kill(made[2])
        stays.push(1, ones, WAIT)
        with pytest.raises(DeadlineError, match=r"1 has waited 1 s for 2 before step 2 at shard 0 of 0"):
            stays.pull(2, 1.0)
        waiting = threading.Timer(0.2, lambda: service.change_view(["1"]))
        waiting.start()
        assert (stays.pull(2, WAIT).values == 3).all()
        waiting.join()


def test_a_server_that_is_lost_ends_the_wait_of_its_workers() -> None:
    with served(2, 0, shards=1) as (made, _, ((first,), _)):
        first.push(0, np.ones(first.size, np.float32), WAIT)
        kill(made[0])
        with pytest.raises((PeerLost, DeadlineError), match="0"):
            first.pull(1, 5.0)


def test_updates_that_are_not_finite_are_refused_and_the_third_in_a_row_quarantines() -> None:
    with served(2, None, shards=1) as (_, (service,), ((bad,), (good,))):
        poison = np.full(bad.size, np.nan, np.float32)
        outcomes = [bad.push(clock, poison, WAIT) for clock in range(3)]
        assert outcomes == [PushOutcome.REFUSED, PushOutcome.REFUSED, PushOutcome.QUARANTINED]
        with pytest.raises(CallFailed, match="was quarantined"):
            bad.pull(3, WAIT)
        good.push(0, np.ones(good.size, np.float32), WAIT)
        assert (service.values()[1] == 1).all()


@pytest.mark.parametrize(
    ("head", "arrays", "complaint"),
    [
        (b"nonsense", [], "no request"),
        (b"\x82\xa4type\xa4push\xa5clock\x00", [], "pushes 0 arrays"),
        (b"\x82\xa4type\xa4push\xa5clock\x00", [np.zeros(7, np.float32)], "of shape (7,)"),
        (b"\x82\xa4type\xa4push\xa5clock\x09", [np.zeros(5043, np.float32)], "step 9 where 0 comes next"),
    ],
)
def test_what_no_honest_worker_sends_is_refused(head: bytes, arrays: list[np.ndarray], complaint: str) -> None:
    with served(1, None, shards=1) as (made, (service,), _):
        with pytest.raises((CallFailed, PeerLost)) as error:
            made[1].messenger.call(SERVER, "shard.0", head, arrays, deadline=WAIT)
        assert complaint in str(error.value) or isinstance(error.value, PeerLost)
        assert service.values()[0] == 0
