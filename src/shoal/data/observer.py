"""What a loader tells the run while the script iterates it.

(load_began (load_ended | short))* load_began? exhausted        one pass, always this sequence
"""

from typing import Protocol

from shoal.data.deal import Counts


class Observer(Protocol):
    """Follows one worker's passes over its loader. All calls come from the thread that iterates the loader.

    Every worker sees the same `counts` in the same order, without communication. `load_ended` and `short` may
    raise: the error leaves through the script's loop, after `exhausted`. `exhausted` must not raise.
    """

    @property
    def epoch(self) -> int:
        """The current epoch; asked once at the beginning of each pass."""
        ...

    def load_began(self) -> None:
        """The script asks for the next batch."""
        ...

    def load_ended(self, counts: Counts) -> None:
        """The batch is here and goes to the script; `counts` are the samples of every worker in this step."""
        ...

    def short(self, counts: Counts) -> None:
        """Others have samples in this step, this worker has none; the script gets no batch for it."""
        ...

    def exhausted(self) -> None:
        """The pass is over: at its end, or because the script left it; once per pass that was begun."""
        ...


class NoObserver:
    """The observer that takes no notice; its epoch is set by hand."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch

    def load_began(self) -> None:
        pass

    def load_ended(self, counts: Counts) -> None:
        pass

    def short(self, counts: Counts) -> None:
        pass

    def exhausted(self) -> None:
        pass
