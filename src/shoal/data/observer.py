"""The calls that a loader makes to the run while the script iterates it.

One pass:
    continued? opened (load_began next_step dealt (load_ended | short))* (load_began next_step)? finished? exhausted
"""

from typing import Protocol

from shoal.data.deal import Counts
from shoal.data.loader_pass import LoaderPass
from shoal.data.source.base import LoaderStep


class LoaderObserver(Protocol):
    """Follows one worker's passes over its loader. All calls come from the thread that iterates the loader.

    Every worker sees the same `counts` in the same order, without communication. `load_ended` and `short` may
    raise: the error leaves through the script's loop, after `exhausted`. `exhausted` must not raise.
    """

    @property
    def epoch(self) -> int:
        """The current epoch; asked once at the beginning of each pass."""
        ...

    def continued(self) -> None:
        """A pass goes on where a checkpoint left it; nothing has been loaded yet."""
        ...

    def opened(self, run: LoaderPass) -> None:
        """A pass begins; it may be given leases here."""
        ...

    def load_began(self) -> None:
        """The script asks for the next batch."""
        ...

    def next_step(self, run: LoaderPass, step: LoaderStep | None) -> None:
        """This step is dealt next, or nothing is left; what remains of the pass may be changed here, and only here."""
        ...

    def dealt(self, run: LoaderPass, step: LoaderStep) -> None:
        """Note which samples all workers together use in the step that begins now."""
        ...

    def load_ended(self, counts: Counts) -> None:
        """The batch is here and goes to the script; `counts` are the samples of every worker in this step."""
        ...

    def short(self, counts: Counts) -> None:
        """Others have samples in this step, this worker has none; the script gets no batch for it."""
        ...

    def finished(self, run: LoaderPass) -> None:
        """The pass came to its end: there is nothing more to deal."""
        ...

    def exhausted(self, run: LoaderPass | None = None) -> None:
        """The pass is over: at its end, or because the script left it; once per pass that was begun."""
        ...


class NoObserver:
    """The observer that takes no notice; its epoch is set by hand."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch

    def continued(self) -> None:
        pass

    def opened(self, run: LoaderPass) -> None:
        pass

    def load_began(self) -> None:
        pass

    def next_step(self, run: LoaderPass, step: LoaderStep | None) -> None:
        pass

    def dealt(self, run: LoaderPass, step: LoaderStep) -> None:
        pass

    def load_ended(self, counts: Counts) -> None:
        pass

    def short(self, counts: Counts) -> None:
        pass

    def finished(self, run: LoaderPass) -> None:
        pass

    def exhausted(self, run: LoaderPass | None = None) -> None:
        pass
