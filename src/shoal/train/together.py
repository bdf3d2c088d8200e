"""All that a run has joined, and the steps in which some workers have no sample.

    worker with samples          worker without
    exchange 0  ---------------> stand in for exchange 0        as often as the script runs a backward pass
    done        ---------------> take over worker 0's state

The state is taken over so that clipping, schedulers and whatever else the others' scripts did between backward and
step is done here too. Loaders tell this object what every worker has in each step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.cluster.group import Group
from shoal.core.errors import UsageError
from shoal.train.joined import Joined
from shoal.train.progress import Progress
from shoal.train.state import adopt_gradients, adopt_state

_DONE, _AGREED, _SHORT = b"done", b"agreed", b"short"


class Together:
    """The observer of every joined loader."""

    def __init__(self, group: Group, progress: Progress) -> None:
        self.group, self.progress = group, progress
        self.joined: list[Joined] = []
        self._quiet = False
        self._some_short = False

    def add(self, joined: Joined) -> None:
        first = not any(other.members.optimizers for other in self.joined)
        joined.listen(self._refuse, first)
        self.joined.append(joined)

    def _refuse(self) -> None:
        if self._quiet:
            raise UsageError(
                "optimizer.step() inside run.accumulate(): its gradients were never exchanged; step after it"
            )

    def announce(self, joined: Joined) -> None:
        """Workers that are short of samples learn which exchange they are waited for in.

        Not before the backward pass has ended: it may begin exchanges of several joined models.
        """
        if self._some_short:
            self.group.gather(str(self.joined.index(joined)).encode())

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Inside, gradients add up and nothing is exchanged."""
        before = self._quiet
        self._set_quiet(True)
        try:
            yield
        finally:
            self._set_quiet(before)

    def _set_quiet(self, quiet: bool) -> None:
        self._quiet = quiet
        for joined in self.joined:
            if joined.backward is not None:
                joined.backward.quiet = quiet

    def weigh_openly(self, counts: Sequence[int]) -> None:
        for joined in self.joined:
            joined.weigh_openly(counts)

    @property
    def epoch(self) -> int:
        return self.progress.epoch

    def load_began(self) -> None:
        self._settle()
        self.progress.load_began()

    def load_ended(self, counts: tuple[int, ...]) -> None:
        self.progress.load_ended(counts[self.group.rank])
        self._some_short = 0 in counts and any(not joined.alone for joined in self.joined)
        self._weigh(counts)

    def short(self, counts: tuple[int, ...]) -> None:
        if all(joined.alone for joined in self.joined):
            return
        self._weigh(counts)
        while (said := self.group.gather(_SHORT)[0]) not in (_DONE, _AGREED):
            self.joined[int(said)].stand_in()
        self._adopt(said == _AGREED)

    def exhausted(self) -> None:
        self._settle()
        self._weigh((1,) * self.group.size)
        self.progress.pause()

    def _weigh(self, counts: Sequence[int]) -> None:
        for joined in self.joined:
            joined.weigh(counts)

    def _settle(self) -> None:
        """After a step in which some had nothing: hand them what it came to."""
        if self._some_short:
            self._some_short = False
            agreed = all(joined.agreed or not joined.exchanged for joined in self.joined)
            said = self.group.gather(_AGREED if agreed and any(j.exchanged for j in self.joined) else _DONE)
            self._adopt(said[0] == _AGREED)

    def _adopt(self, gradients: bool) -> None:
        for joined in self.joined:
            members = joined.members
            adopt_state(self.group, members.models, members.optimizers, members.parameters)
            if gradients:
                adopt_gradients(self.group, members.parameters)
