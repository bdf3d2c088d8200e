"""A member's part in bringing newcomers to the state of the training.

before a newcomer enters    its state is streamed, and every update since (links alone; `sender`)
when it enters              the donor of the view hands over all the state, or what the stream lacks (`handover`)
"""

from collections.abc import Sequence

from torch.optim import Optimizer

from shoal.groups.base import WorkerGroup
from shoal.membership.view import MembershipView
from shoal.train.catchup import handover
from shoal.train.catchup.sender import CatchUpSender
from shoal.train.checkpoint.snapshot import TrainingPosition
from shoal.train.checkpoint.sync_schedule import SyncSchedule
from shoal.train.joined import JoinedModels

NO_STREAM = "the donor streams nothing"


class StateDonor:
    """Of one worker, over all its joins. Used by the training thread."""

    def __init__(self, group: WorkerGroup, joined: Sequence[JoinedModels]) -> None:
        self.group, self.joined = group, joined
        server = group.state_stream_server()
        self._sender = CatchUpSender(server, joined) if server is not None else None

    def between_steps(self) -> None:
        """Nothing is under way, and newcomers may be let in next."""
        self.group.transfer.release()
        if self._sender is not None:
            self._sender.between()

    def before_step(self, joined: JoinedModels, optimizer: Optimizer, closure: bool) -> None:
        if self._sender is not None:
            self._sender.updating(joined, optimizer, closure)

    def after_step(self) -> None:
        if self._sender is not None:
            self._sender.updated()

    def hand_over(self, where: TrainingPosition, schedule: SyncSchedule) -> None:
        """Newcomers of the view wait for the state, and this worker is the one to give it."""
        streamed, sender = self.group.session.streamed, self._sender
        rests = {member: sender.rest(member) if sender is not None else NO_STREAM for member in streamed}
        handover.give(self.group, self.joined, where, schedule, rests)

    def follow(self, view: MembershipView) -> None:
        """The members have changed: streams end with their view."""
        if self._sender is not None:
            self._sender.change(view.members)
