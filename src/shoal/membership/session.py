"""A worker's place in the views of its run, as groups, engines and loaders use it.

    session.enter()        the next operation begins; waits while a view is being made
    … its parts arrive; a wait that notices `disturbed` raises ViewEnded …
    session.arrived()      some have; after the last, the session announces the result while it is being decoded
    session.complete()     everybody holds the result; ViewEnded if the view ended before
    session.settle()       after ViewEnded: waits for the new view; True: the operation counts, False: do it again
    session.begin(step)    between two steps: lets newcomers in, and other plans

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
    """What groups, engines and loaders know of the members; a subclass decides whether the view can change."""

    member: str
    view: MembershipView
    elastic: bool = True
    """Whether the view can change at all."""

    def __init__(self) -> None:
        self.listeners = MembershipListeners()
        """They are told of every new view, in the training thread."""
        self.rigid = ""
        """Why the run cannot survive the loss of a member; empty if it can."""
        self._completing = False

    waiting: bool = False
    """Whether this worker is a newcomer that is not in a view yet."""
    fresh: tuple[str, ...] = ()
    """Members of the view that wait for a state."""

    proposed: bool = False
    """Whether a view with newcomers waits for the next step, as far as this worker knows."""

    proposed_plan: str = ""
    """The plan of that view; empty if there is none, or if it is the one the run began with."""

    streamed: tuple[str, ...] = ()
    """Those of `fresh` to which a member has streamed most of the state."""

    gives: bool = False
    """Whether this worker is the donor."""

    @property
    @abstractmethod
    def committed_view(self) -> MembershipView:
        """Return the view that formed the last complete operation.

        It is the same for all members at the same operation, so it decides who gets which samples next.
        """

    @property
    def newest_view(self) -> MembershipView:
        """Return the view that members will work in next, which may be newer than `view`. Any thread may ask."""
        return self.view

    @property
    @abstractmethod
    def disturbed(self) -> bool:
        """Return whether `view` has ended or is ending, so that nothing more completes in it. Cheap: waits poll it."""

    @abstractmethod
    def enter(self, holds: Callable[[], bool]) -> None:
        """Begin the next operation. `holds`, which any thread may call, tells whether all its parts have arrived."""

    def arrived(self) -> None:  # noqa: B027  (a fixed view has no one to tell)
        """Note that parts of the operation have arrived, perhaps the last ones."""

    def expect_complete(self, expected: bool) -> None:
        """Set whether `complete` is the next call; the session then announces the result as soon as it is whole."""
        self._completing = expected

    @abstractmethod
    def complete(self) -> None: ...

    @abstractmethod
    def settle(self) -> bool: ...

    @abstractmethod
    def begin(self, step: int, admits: bool = True) -> bool:
        """Let a view begin before this step. Unless it `admits` newcomers, a view with some goes on waiting, and the
        step counts as not begun: returns False, and is called again for it at a later one."""

    def remote(self, member: str) -> bool:
        """Return whether a member runs on another machine than the run began on, so that its messages are checked."""
        return False

    def blame(self, member: str, error: ShoalError) -> NoReturn:
        """Report a member that sent what no honest one sends. Raise ViewEnded if the run can go on, else the error."""
        raise error

    def distrust(self, member: str, error: ShoalError) -> None:
        """Report it after the operation is complete; return if the run can go on without its part, else raise."""
        raise error

    def request_plan(self, plan: str) -> None:
        """Ask for a view of the same members under another plan, from a step boundary on."""
        raise UsageError(
            f"run.switch({plan!r}): the members of this run are fixed and have no coordinator to agree by; "
            "start it with shoal run and two workers or more, without --trusted"
        )

    @property
    def leases(self) -> LeaseClient | None:
        """Return this worker's end of the coordinator's lease book; None if there is no coordinator."""
        return None

    def forbid_loss(self, reason: str) -> None:
        """End the run when a member is lost, because of `reason`."""
        self.rigid = reason

    def close(self, leave: bool = True, held: tuple[int, str] = (0, "")) -> None:  # noqa: B027  (may do nothing)
        """End this worker's membership; `leave` tells the coordinator that its training is over.

        `held`: the last step, and the fingerprint of the parameters after it.
        """

    def operate(self, attempt: Callable[[], T], confirm: Callable[[], None]) -> T:
        """Attempt an operation until it completes in some view, because a view may end in the middle of it.

        `confirm` announces that this worker holds the result, and waits until all members do.
        """
        while True:
            found: list[T] = []
            self.enter(lambda found=found: bool(found))  # type: ignore[misc]
            try:
                found.append(attempt())
                confirm()
                self.complete()
            except ViewEnded:
                # Not counted: the result is of a view that has ended, so the operation is made again in the next one.
                if not self.settle():
                    continue
            return found[0]

    def outside(self, wait: Callable[[], None]) -> None:
        """Wait for others while no operation is under way, again in the next view if this one ends meanwhile."""
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
        raise AssertionError("a fixed view does not end")

    def begin(self, step: int, admits: bool = True) -> bool:
        return True


def member_name(slot: int, start: int = 0) -> str:
    """Return the id of the worker that was started in a slot for the `start`-th time; no id is used twice."""
    return f"w{slot}.{start}"


def slot_of(member: str) -> int:
    return int(member[1:].partition(".")[0])


def start_of(member: str) -> int:
    return int(member.partition(".")[2])
