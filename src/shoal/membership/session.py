"""A worker's place in the views of its run, as groups, engines and loaders use it.

    session.enter()        the next operation begins; waits while a view is being made
    … its parts arrive; a wait that notices `disturbed` raises ViewEnded …
    session.arrived()      some have; after the last, the session announces the result while it is being decoded
    session.complete()     everybody holds the result; ViewEnded if the view ended before
    session.settle()       after ViewEnded: waits for the new view; True: the operation counts, False: do it again
    session.begin(step)    between two steps: lets newcomers in

Only the training thread calls these. `view` changes inside `enter`, `settle` and `begin`, and nowhere else, so code in
between sees one view.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NoReturn, TypeVar

from shoal.core.errors import ShoalError, UsageError, ViewEnded
from shoal.membership.lease_client import LeaseClient
from shoal.membership.listener import MembershipListeners
from shoal.membership.view import MembershipView

T = TypeVar("T")


class MembershipSession(ABC):
    """What groups, engines and loaders know of the members; subclasses decide whether the view can change."""

    member: str
    view: MembershipView
    elastic: bool = True
    """Whether the view can change at all."""

    def __init__(self) -> None:
        self.listeners = MembershipListeners()
        """Told of every new view, in the training thread."""
        self.rigid = ""
        """Why the run cannot survive the loss of a member; empty if it can."""
        self._completing = False

    waiting: bool = False
    """Whether this worker is a newcomer that is no member yet."""
    fresh: tuple[str, ...] = ()
    """Members of the view that wait for the state of the others."""

    proposed: bool = False
    """Whether somebody waits to enter between two steps, as far as this worker knows."""

    streamed: tuple[str, ...] = ()
    """Those of `fresh` to whom a member has streamed most of it."""

    gives: bool = False
    """Whether this worker is the one to give it to them."""

    @property
    @abstractmethod
    def committed_view(self) -> MembershipView:
        """The view that formed the last complete operation: the same for all members at the same operation, so it
        decides who is dealt samples next."""

    @property
    def newest_view(self) -> MembershipView:
        """The view that members will work in next, which may be newer than `view`. Any thread may ask."""
        return self.view

    @property
    @abstractmethod
    def disturbed(self) -> bool:
        """Whether a view is being made, or a newer one is there: nothing more completes in `view`. Cheap."""

    @abstractmethod
    def enter(self, holds: Callable[[], bool]) -> None:
        """Begin the next operation. `holds`, which any thread asks: could it be completed from what is there?"""

    def arrived(self) -> None:  # noqa: B027  (where nobody has to be told, there is nothing to do)
        """Say that parts of the operation have come, so that all of it may be here."""

    def expect_complete(self, expected: bool) -> None:
        """Say whether `complete` is the next call: a session then announces a result as soon as it is whole."""
        self._completing = expected

    @abstractmethod
    def complete(self) -> None: ...

    @abstractmethod
    def settle(self) -> bool: ...

    @abstractmethod
    def begin(self, step: int) -> None: ...

    def remote(self, member: str) -> bool:
        """Return whether a member is of another machine than the one the run began on: what it says is checked."""
        return False

    def blame(self, member: str, error: ShoalError) -> NoReturn:
        """Report a member that sent what no honest one sends; raise ViewEnded if the run can go on, else the error."""
        raise error

    def distrust(self, member: str, error: ShoalError) -> None:
        """Do the same where the operation is complete: leave out what this member sent, if the run can go on."""
        raise error

    def request_plan(self, plan: str) -> None:
        """Ask for one view change: the same members under another plan, from the next step boundary on."""
        raise UsageError(
            f"run.switch({plan!r}): the members of this run are fixed and have no coordinator to agree by; "
            "start it with shoal run and two workers or more, without --trusted"
        )

    @property
    def leases(self) -> LeaseClient | None:
        """This worker's end of the coordinator's book of leases; None where there is no coordinator."""
        return None

    def forbid_loss(self, reason: str) -> None:
        """End the run when a member is lost, because of `reason`."""
        self.rigid = reason

    def close(self, leave: bool = True, held: tuple[int, str] = (0, "")) -> None:  # noqa: B027  (may do nothing)
        """End this worker's membership; `leave` tells the others that the training is over here.

        `held`: the step after which it is over, and the fingerprint of the parameters this worker holds then.
        """

    def operate(self, attempt: Callable[[], T], confirm: Callable[[], None]) -> T:
        """Repeat an operation until it is complete in some view, because a view may end in the middle of it.

        `confirm` announces that the result is whole here, and waits until it is everywhere.
        """
        while True:
            found: list[T] = []
            self.enter(lambda found=found: bool(found))  # type: ignore[misc]
            try:
                found.append(attempt())
                confirm()
                self.complete()
            except ViewEnded:
                if not self.settle():
                    continue
            return found[0]

    def outside(self, wait: Callable[[], None]) -> None:
        """Wait for others where no operation is under way, again in the next view if one ends meanwhile."""
        while True:
            try:
                return wait()
            except ViewEnded:
                self.settle()


class FixedSession(MembershipSession):
    """One view that never changes: the null member, for runs without a coordinator."""

    elastic = False

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.view = MembershipView(0, tuple(member_name(slot) for slot in range(size)))
        self.member = member_name(rank)

    @property
    def committed_view(self) -> MembershipView:
        return self.view

    @property
    def disturbed(self) -> bool:
        return False

    def enter(self, holds: Callable[[], bool]) -> None:
        pass

    def complete(self) -> None:
        pass

    def settle(self) -> bool:
        raise AssertionError("a steady view does not end")

    def begin(self, step: int) -> None:
        pass


def member_name(slot: int, start: int = 0) -> str:
    """Return the id of the worker that was started in a slot for the `start`-th time; no id is used twice."""
    return f"w{slot}.{start}"


def slot_of(member: str) -> int:
    return int(member[1:].partition(".")[0])


def start_of(member: str) -> int:
    return int(member.partition(".")[2])
