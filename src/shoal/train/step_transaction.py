"""The step's transaction: what the members do together, and what happens when some are lost in the middle.

    begin(a), begin(b)     parts of one backward pass join; buckets leave while the pass runs
    end(a), end(b)         with the last one, all is committed:
                               the rest leaves -> all results are waited for -> the session completes the operation
                               members are lost:  everybody else holds all parts -> finish locally what is not finished
                                                  else -> the same again among those of the new view
                           then every part delivers

Nothing else calls `enter`, `complete` or `settle` of a session (tests/train/test_step_transaction.py). Gathers and
broadcasts of a group are operations of their own.
"""

from collections.abc import Callable, Sequence

from shoal.core.clock import now
from shoal.core.errors import ViewEnded
from shoal.membership.session import MembershipSession
from shoal.membership.view import MembershipView
from shoal.sync.synchronizer import TransactionParticipant


class StepTransaction:
    """One after the other, of all parts of a run. Used by the training thread."""

    # set by `SampleDealing.start_at_end`, which has the reasons
    starts_at_end = False

    def __init__(
        self,
        session: MembershipSession,
        announce: Callable[[Sequence[TransactionParticipant]], None] = lambda participants: None,
    ) -> None:
        """`announce` is called with the parts of a backward pass before anything of it is waited for."""
        self.session, self._announce = session, announce
        self._open: list[TransactionParticipant] = []
        self._ended: list[TransactionParticipant] = []
        self._operation: tuple[TransactionParticipant, ...] = ()
        """Of the operation under way, or of the last one."""

    def begin(self, participant: TransactionParticipant) -> None:
        """Join the transaction of this backward pass, or open it."""
        if participant in self._open:
            # an exception ended its last pass, or it would not begin again
            self._abandon([participant])
        self._ended = [each for each in self._ended if each is not participant]
        participant.begin()
        self._open.append(participant)
        if self.starts_at_end:
            self._prepare_outside(participant)
        else:
            self._enter([participant])

    def _prepare_outside(self, participant: TransactionParticipant) -> None:
        """Wait for others where no operation is under way, again in the next view if one ends meanwhile."""
        while True:
            try:
                return participant.prepare()
            except ViewEnded:
                self.session.settle()

    def _enter(self, joining: Sequence[TransactionParticipant]) -> None:
        """The operation begins, in a view whose members have all done with the one before."""
        self._operation = tuple(self._open)
        while True:
            self.session.enter(self._is_complete)
            try:
                for participant in joining:
                    participant.prepare()
            except ViewEnded:
                self.session.settle()
            else:
                return

    def _is_complete(self) -> bool:
        """Whether this worker could finish from what is there; asked by another thread when a view ends."""
        return all(participant.is_complete() for participant in self._operation)

    def end(self, participant: TransactionParticipant) -> None:
        """Its backward pass has ended; when that of all others in it has too, commit and deliver."""
        self._ended.append(participant)
        waiting = [each for each in self._open if each not in self._ended]
        if any(each.is_running() for each in waiting):
            return
        self._abandon(waiting)  # an exception ended their pass
        self._announce(self._open)
        self.commit()

    def commit(self) -> MembershipView:
        """Finish all that is open, together with whoever is a member in the end; returns the view that made it."""
        if self.starts_at_end:
            self._enter(self._open)
        return self._commit()

    def _commit(self) -> MembershipView:
        for participant in self._open:
            participant.launch()
        return self._conclude()

    def _conclude(self) -> MembershipView:
        participants = list(self._open)
        self._agree(participants)
        view = self.session.committed_view
        self._open, self._ended = [], []
        for participant in participants:
            participant.deliver()
        return view

    def _agree(self, participants: Sequence[TransactionParticipant]) -> None:
        while True:
            unfinished = list(participants)
            # `complete` follows at once, so the session may tell the others as soon as the result is whole
            self.session.expect_complete(True)
            try:
                while unfinished:
                    unfinished[0].finish()
                    del unfinished[0]
                self._complete(participants[0])
                return
            except ViewEnded:
                # the others hold all parts and go on, so this worker must not repeat the operation
                if self.session.settle():
                    break
                for participant in participants:
                    participant.retry()
            finally:
                self.session.expect_complete(False)
        # Not those that have finished: a member that has completed the operation may have written the next one's
        # numbers over what they have read.
        for participant in unfinished:
            participant.finish_locally()

    def _complete(self, first: TransactionParticipant) -> None:
        began = now()
        try:
            self.session.complete()
        finally:
            # the wait for all members is counted once, and not for every part
            first.spent.wait += now() - began

    def _abandon(self, participants: Sequence[TransactionParticipant]) -> None:
        """What had left is finished, on all workers alike, and comes to nothing."""
        if not participants:
            return
        for participant in participants:
            self._open.remove(participant)
        self._operation = tuple(participants)
        left = [participant for participant in participants if participant.abandon()]
        if left:
            self._agree(left)
        for participant in participants:
            participant.reset()

    def run(self, participant: TransactionParticipant) -> MembershipView:
        """A transaction of its own, outside of backward passes; returns the view whose members made it."""
        self.start(participant)
        return self.conclude(participant)

    def start(self, participant: TransactionParticipant) -> None:
        """The first half of `run`: everything leaves. The operation stays open, so nothing else may be exchanged."""
        self._abandon(list(self._open))  # left by a pass that an exception has ended
        self._ended = []
        participant.begin()
        self._open.append(participant)
        self._enter([participant])
        participant.launch()

    def conclude(self, participant: TransactionParticipant) -> MembershipView:
        """The second half. Members may have been lost since: then it is made again among the others, if need be."""
        return self._conclude()
