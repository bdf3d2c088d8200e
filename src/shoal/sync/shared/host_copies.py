"""One copy of the parameters on each host, and averages between the hosts: H2O's scheme.

    host A:  workers 0, 1 ──steps──> copy A ─┐                 ┌─> copy A
                                             ├─ change, mean ──┤
    host B:  workers 2, 3 ──steps──> copy B ─┘                 └─> copy B

    first step of a round    all have come: remember the copy, which is the same on all hosts (the anchor)
    steps                    as in `lock_free.py`
    end of a round           all have stopped ──> change of the host's copy since the anchor, by the samples of each
                             worker ──> mean of all ──> outer optimizer ──> written into the copy of each host

H2O's deep learning: Candel et al., "Deep Learning with H2O", 2015: Hogwild threads on a node, averages across nodes. A
worker offers the change of its host's copy with its own weight, so a host counts by the samples of all its workers and
none has to speak for the others: whoever is left of a host carries what all of it have trained. All workers of a host
come to the same result and write the same bits, so nobody waits for a leader to write.

What a killed worker has trained is in its host's copy, and only its host knows how much: those that are left there
tell all others after the averages, so its samples count everywhere or nowhere. Of a host that is lost whole nothing is
left, and its samples are dealt again.

Do not use it where every host has one worker, which `local(…)` serves, nor with updates that workers of one host should
not mix at once: see `lock_free.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from shoal.core.errors import PayloadError
from shoal.groups.base import WorkerGroup
from shoal.membership.session import slot_of
from shoal.membership.view import MembershipView
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.outer import OuterOptimizer
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.shared.lock_free import LockFreeSynchronizer
from shoal.sync.shared.parameter_copy import SharedParameters
from shoal.sync.shared.trained_log import TrainedLog
from shoal.sync.state import State
from shoal.sync.synchronizer import Part
from shoal.sync.trained import TrainedSamples, check_trained

MOST_STEPS = 1 << 24
"""Of one worker in a round; a peer that reports more is not believed."""


class KeptSteps(msgspec.Struct, array_like=True, frozen=True):
    """What a member that is lost has left in the copy of its host."""

    member: str
    steps: int
    trained: list[TrainedSamples]


class HostCopiesSynchronizer(LockFreeSynchronizer):
    """Of one part. `steps`: of each worker from one round to the next."""

    def __init__(self, exchange: GradientExchange, group: WorkerGroup, outer: OuterOptimizer, steps: int) -> None:
        super().__init__(exchange, group.copy_host, steps, outer)
        self.group = group
        self._log: TrainedLog | None = None
        """Of leased samples."""
        self._logged = 0
        """Batches of this worker that are in it."""
        self._began: MembershipView | None = None
        """The members that began the round under way."""
        self._hosts: Mapping[str, str] = {}
        """Of each member that began it."""
        self._lost: dict[str, KeptSteps] = {}
        """In the last round."""

    def open(self, part: Part, state: State | None = None) -> None:
        LocalStepsSynchronizer.open(self, part, state)
        self.copy = SharedParameters(self.host, self._parameters, part.optimizers)
        self._log = TrainedLog(self.host) if self.leased else None

    @contextmanager
    def agreed_parameters(self) -> Iterator[None]:
        """In a round nobody may write the anchor back, as others train on the copy; nothing asks for it there."""
        yield

    def _begin_round(self) -> None:
        self._hosts = self.group.hosts_of_members()  # before anybody may be lost on the way into the round
        if self._log is not None:
            self._log.clear()
        self._logged = 0
        self._anchor.remember()  # the copy stands still until all have come
        super()._begin_round()

    def _await_all(self) -> MembershipView:
        self._began = super()._await_all()
        return self._began

    def _count(self) -> None:
        if not self._begun:  # this worker has no sample in the first step of a round
            self._begin_round()
        if self._log is not None:
            trained = self.part.weights.leased_from(self._logged)
            self._logged += len(trained)
            self._log.add(trained)
        super()._count()

    def leave_round(self) -> None:
        """Whoever was leased nothing begins the round here, because the others wait for all in their first step."""
        if not self._begun:
            self._begin_round()

    def close_round(self) -> None:
        if not self._begun:
            self._begin_round()
        self._await_stop()
        LocalStepsSynchronizer.close_round(self)
        self._begun = False
        self._count_lost()

    def _await_stop(self) -> None:
        """A change is read once nobody of the host writes any more."""
        LockFreeSynchronizer._await_all(self)

    def _count_lost(self) -> None:
        """Agree on what lost members have left in copies that are in the averages."""
        assert self._began is not None
        assert self.formed is not None
        self._lost, formed = {}, self.formed
        lost = [member for member in self._began.members if member not in formed]
        if not lost:
            return
        own = self._hosts.get(self.part.session.member)
        told = [self._read_kept(member) for member in lost if own is not None and self._hosts.get(member) == own]
        said = self.group.gather(msgspec.json.encode(told), check=read_kept)
        for teller, data in zip(self.part.session.committed_view.members, said, strict=True):
            for kept in read_kept(data):
                # a worker is believed about its own host alone
                if kept.member in lost and self._hosts.get(teller) == self._hosts.get(kept.member, ""):
                    # the workers of a host read the same memory, so the first to tell is enough
                    self._lost.setdefault(kept.member, kept)

    def _read_kept(self, member: str) -> KeptSteps:
        slot = slot_of(member)
        trained = self._log.read(slot) if self._log is not None else []
        return KeptSteps(member, self.copy.steps()[slot] - self._steps_before[slot], trained)

    def steps_kept(self, member: str) -> int:
        return self._lost[member].steps if member in self._lost else 0

    @property
    def samples_kept(self) -> Mapping[str, Sequence[TrainedSamples]]:
        return {member: kept.trained for member, kept in self._lost.items() if kept.trained}


def read_kept(data: bytes) -> Iterable[KeptSteps]:
    """What a worker tells of lost ones; PayloadError for what no copy holds."""
    found = msgspec.json.decode(data, type=list[KeptSteps])
    for kept in found:
        if not 0 <= kept.steps <= MOST_STEPS:
            raise PayloadError(f"{kept.steps} steps of {kept.member} in one round; at most {MOST_STEPS} are believed")
        check_trained(kept.trained)
    return found
