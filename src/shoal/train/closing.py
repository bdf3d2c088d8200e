"""How a worker's part of a run ends: nothing is left under way, the record has its last event, the group is left."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.core.errors import Quarantined
from shoal.core.events import WorkerEnded
from shoal.core.journal import EventJournal
from shoal.groups.base import WorkerGroup
from shoal.hosts.status_board import WorkerState
from shoal.membership.elastic_session import ElasticSession
from shoal.train.latency import InferenceLatency
from shoal.train.progress import StepProgress
from shoal.train.step_coordinator import StepCoordinator


@dataclass
class RunClosing:
    """Of one worker; used once."""

    group: WorkerGroup
    together: StepCoordinator
    progress: StepProgress
    journal: EventJournal
    latency: InferenceLatency | None

    def close(self, error: BaseException | None, register: Callable[[], str]) -> WorkerEnded:
        """The script has ended well, or with `error`. `register` stores the model and returns what went wrong."""
        if error is None:
            self.together.settle()
        self.together.rounds.closed = True
        self._tell_progress()
        if self.together.checkpoints is not None and error is None:  # else the shards of others may never come
            self.together.checkpoints.close()
        if self.together.ledger is not None:
            self.together.ledger.close()
        # after the ledger, from whose file the version's lineage is read
        if error is None and not self._left_early and (problem := register()):
            self.progress.warn(problem)
        if self.latency is not None and not error:
            self.journal.emit(self.latency.measure())
        ended = self._describe(error)
        self.journal.emit(ended)
        self.journal.close()
        self._leave(error, ended)
        return ended

    @property
    def _left_early(self) -> bool:
        """Whether the training goes on without this worker."""
        return isinstance(self.group.session, ElasticSession) and self.group.session.leaves_early

    def _tell_progress(self) -> None:
        self.progress.pause()
        self.progress.tell_traffic()
        self.progress.tell_layers()
        self.progress.tell_buckets()

    def _describe(self, error: BaseException | None) -> WorkerEnded:
        """The record's last event; the launcher compares what workers that are done hold then."""
        if error is not None:
            return WorkerEnded(at=time.time(), exit="failed", error=repr(error), step=self.progress.step)
        if self._left_early and not self.group.remote:
            return WorkerEnded(at=time.time(), exit="left", step=self.progress.step)
        found = self.together.final_fingerprint()
        return WorkerEnded(at=time.time(), exit="done", step=self.progress.step, fingerprint=found)

    def _leave(self, error: BaseException | None, ended: WorkerEnded) -> None:
        group = self.group
        group.board.note(group.slot, WorkerState.ended)
        if group.remote and error is not None and isinstance(group.session, ElasticSession):
            group.session.leave_early()  # a remote worker's failure is its own: the others go on
        group.session.close(not isinstance(error, Quarantined), (ended.step, ended.fingerprint))
