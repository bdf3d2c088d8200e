"""`shoal run` on one host: forks the workers from this process, which has imported torch once, and watches them.

    launcher ── fork ──> worker 0 … worker p-1          (each its own process group)
        │  <── pipes: output, errors, one report ──┘
        │  ──> board: "worker r is lost, stop waiting"
        └── SIGINT, SIGTERM, SIGKILL to the processes that are left

The launcher starts no thread, so that it may fork at any time.
"""

import contextlib
import signal
import sys

from shoal.core.clock import Deadline, now
from shoal.core.descriptors import raise_descriptor_limit
from shoal.core.signals import StopAtOnce, held_back
from shoal.hosts.arena import SharedArena
from shoal.hosts.status_board import BYTES, StatusBoard, WorkerState
from shoal.launch.announcement import RunAnnouncement
from shoal.launch.failures import OutOfMemoryWatch, RunFailure, WorkerProcess, blame, parse, secondary, set_aside
from shoal.launch.job import JobWatcher, LaunchJob
from shoal.launch.launcher_services import LauncherServices
from shoal.launch.policy import LossPolicy
from shoal.launch.server_choice import ServerChoice
from shoal.launch.stop_requests import StopRequests, reap, signal_group
from shoal.launch.supervisor import RunSupervisor
from shoal.launch.user_requests import UserRequests
from shoal.launch.worker_output import WorkerOutput
from shoal.launch.worker_starter import WorkerStarter, place_workers
from shoal.launch.worker_tuning import WorkerTuner

# Seconds between two rounds of `_watch`, when no worker writes.
TICK = 0.05
CHECKPOINT_GRACE, GRACE_STEPS = 10.0, 3.0
"""Seconds, and steps, in which workers that are interrupted may save what they have, before they are asked to stop at
once: they meet at the end of a step."""
NOTICE = 0.5
"""Seconds between a worker's word that a peer is lost and the end of the search for that peer."""


class LocalLauncher:
    """Runs one job to its end. `run` returns None if every worker did well."""

    def __init__(self, job: LaunchJob, watcher: JobWatcher) -> None:
        self.job, self.watcher = job, watcher
        # Made before any fork, so that all workers inherit it.
        self.arena = SharedArena.create()
        self.board = StatusBoard(self.arena.map(0, BYTES))
        self.place = place_workers(job, self.arena)
        self.workers: list[WorkerProcess] = []
        self.supervisor: RunSupervisor | None = None
        self.announcement = RunAnnouncement(job, self.arena, self.place.services_stay)
        self._memory = OutOfMemoryWatch()
        self._first: tuple[float, int] | None = None
        """When the first step was seen, and which one it was."""
        self._outlets = WorkerOutput(lambda *said: self.watcher.line(*said), self._reported)
        self._noticed: tuple[Deadline, WorkerProcess] | None = None
        self._requests = StopRequests()
        self._user = UserRequests(
            self.announcement, WorkerTuner(job.capacity) if job.tunes else None, ServerChoice(job)
        )
        self._services = LauncherServices(job, self.place, self.board, self._leave)
        self._starter = WorkerStarter(job, self.place, self._outlets, self._services)
        self._service_failure: RunFailure | None = None

    def _make_supervisor(self, policy: LossPolicy) -> RunSupervisor:
        return RunSupervisor(self.job, policy, self.board, self.place)

    def run(self) -> RunFailure | None:
        """Start the workers and watch them; KeyboardInterrupt passes through after everything is stopped."""
        raise_descriptor_limit()  # of workers and coordinator too
        sys.stdout.flush()  # or every worker would inherit what is still in the buffer
        sys.stderr.flush()
        try:
            self.place.open()
            self._services.open()
            if self.job.survive is not None:
                self.supervisor = self._make_supervisor(self.job.survive)
                self.supervisor.open()
                self._tell(self.place.invitation(self.supervisor.handle.address))
            for rank in self.job.slots:
                self._start(rank)
            self._watch()
        except KeyboardInterrupt as stop:
            self._end_all(at_once=isinstance(stop, StopAtOnce))
            raise
        except BaseException:
            self.watcher = JobWatcher()  # it may be what failed: our output may not be read any more
            self._end_all()
            raise
        finally:
            with held_back():  # a second Ctrl-C must not leave processes behind
                self._sweep()
        return self._service_failure or blame(self.workers)

    def _tell(self, *texts: str) -> None:
        for text in filter(None, texts):
            self.watcher.note(text)

    def _start(self, rank: int) -> None:
        self._starter.start(rank, self.supervisor, self.workers.append)

    def _watch(self) -> None:
        while any(worker.status is None for worker in self.workers) or self._pending:
            # Waits here: what workers write is passed on at once, everything else has time.
            self._outlets.read(TICK)
            self._reap()
            self._survive()
            self._tick_services()
            if self._noticed and self._noticed[0].expired:
                self._failed(self._noticed[1])
            self._requests.press(self.workers)
            self._look()
            self.place.tick(self.board)
            self._pass_on()
            self.watcher.tick(self.board)

    def _tick_services(self) -> None:
        """Let services follow the members and the plan; look whether one the run needs has ended."""
        self._tell(*self._services.tick(self.supervisor))
        self._look_for_dead_services()

    def _leave(self) -> None:
        """In the new process of a service: what follows is the launcher's alone."""
        self._outlets.forget()
        if self.supervisor is not None:
            self.supervisor.handle.forget()

    def _look_for_dead_services(self) -> None:
        """Stop all workers if a service that they need has ended, so that the run may begin again."""
        dead = self._services.find_dead()
        if dead is not None and not self._requests.begun:
            done = any(worker.status == 0 for worker in self.workers)
            self._service_failure = RunFailure(0, None, dead[1], done=done, service=dead[0])
            if self.supervisor is not None:
                self.supervisor.warn(f"{dead[0]} died of {_signal_words(dead[1])}; all workers were stopped")
            for worker in self.workers:
                if worker.status is None:
                    # at once: what they train now is lost, because the run begins again at its checkpoint
                    signal_group(worker, signal.SIGKILL)
            self._requests.begin()

    def _pass_on(self) -> None:
        """What workers of other machines write, and what became of those machines."""
        for said in self.place.take_news():
            if said.worker is None:
                self.watcher.note(said.text)
            else:
                self.watcher.line(said.worker, said.stream, said.text)

    def _look(self) -> None:
        """What others may want to know later, or now."""
        self._memory.look(worker.pid for worker in self.workers if worker.status is None)
        self.announcement.tick(self.workers, self.supervisor, stopping=self._requests.begun)
        if self.supervisor is not None:
            self._tell(*self._user.follow(self.supervisor, stopping=self._requests.begun))
        if self._first is None and (step := self.board.front(self.job.capacity)) is not None:
            self._first = (now(), step)

    @property
    def _pending(self) -> bool:
        return not self._requests.begun and self.supervisor is not None and self.supervisor.pending

    def _survive(self) -> None:
        """Start who is to be started again; end whom the others have given up."""
        if self.supervisor is None:
            return
        due, silent = self.supervisor.tick()
        self._tell(*self.supervisor.notes())
        if self._requests.begun:  # workers that train may still save their state; others are not needed
            for worker in self.workers:
                if worker.status is None and self._waits(worker):
                    signal_group(worker, signal.SIGKILL)
            return
        # The newcomers have no state and no worker is left that could give it: the last loss ended the run.
        if self.supervisor.stranded and not self.supervisor.over:
            last = [worker for worker in self.workers if worker.lost][-1]
            last.lost = False
            self._failed(last)
            return
        for worker in self.workers:
            if worker.status is None and worker.rank in silent and worker is self._last(worker.rank):
                signal_group(worker, signal.SIGKILL)
            elif worker.status is None and self.supervisor.over and self._waits(worker):
                worker.lost = True  # it came too late: the training is over
                signal_group(worker, signal.SIGKILL)
        # Last, after what has ended was noted: a slot must be free before it is taken again.
        for slot in due:
            self._start(slot)

    def _last(self, rank: int) -> WorkerProcess:
        return [worker for worker in self.workers if worker.rank == rank][-1]

    def _waits(self, worker: WorkerProcess) -> bool:
        """Whether a worker came after the run had begun, and is not in it yet."""
        late = self.supervisor is not None and not self.supervisor.founds(worker.rank)
        return late and self.board.read(worker.rank)["state"] == WorkerState.starting

    def _reap(self) -> None:
        for worker in self.workers:
            if reap(worker) and worker.status is not None:
                worker.oom = self._memory.killed(worker.pid) and worker.status == -signal.SIGKILL
                self._outlets.read(0.0)  # its last words may still be in the pipe
                if worker.status == 0:
                    worker.left = self.supervisor is not None and self.supervisor.released(worker.rank)
                    if self.supervisor is not None and not worker.left:
                        self.supervisor.finish()
                elif worker.lost or self._survived(worker):
                    worker.lost = True
                elif worker.status < 0 or set_aside(worker):
                    self._failed(worker)
                else:
                    self._reported(worker)

    def _survived(self, worker: WorkerProcess) -> bool:
        """Whether the run goes on without a worker that has ended badly."""
        report, status = parse(worker.report), worker.status or 0
        aside = set_aside(worker)
        if self.supervisor is None or not (aside or (status < 0 and report is None)):
            return False
        reason = aside or ("oom" if worker.oom else _signal_words(-status))
        if self._requests.begun:  # the others wait for it no longer, and may save what they have
            self.supervisor.handle.gone(self.supervisor.name(worker.rank), reason)
            return False
        living = sum(other.status is None for other in self.workers)
        goes_on = self.supervisor.lost(worker.rank, reason, living, bool(report and report.quarantined))
        if goes_on:
            self.watcher.note(self.supervisor.losses[-1])
        return goes_on

    def _reported(self, worker: WorkerProcess) -> None:
        """A worker told why it ends, which is soon enough: a thread of the script may keep it alive.

        A worker that lost a peer may report before we see the peer dead; wait, so that the peer gets the blame.
        """
        report = parse(worker.report)
        if set_aside(worker) and self.supervisor is not None:
            return  # the others go on; it is counted when it has ended
        if not secondary(report):
            self._failed(worker)
        elif self._noticed is None:
            self._noticed = (Deadline.after(NOTICE), worker)

    def _failed(self, worker: WorkerProcess) -> None:
        """A worker is lost: the others cannot go on without it."""
        if not self._requests.begun:
            worker.blamed = True
            self.board.abort(worker.rank)
            self._requests.begin()

    def _ask_for_checkpoint(self) -> float:
        """Let workers that train save what they have and end by themselves; returns how long they may take."""
        training = self.board.front(self.job.capacity)
        ended = any(worker.status is not None and not (worker.lost or worker.left) for worker in self.workers)
        if not training or self._first is None or self.job.checkpoint == "off" or ended:
            return 0.0
        self.board.stop()
        moment, step = self._first
        # The mean step so far: long steps need a longer grace.
        return CHECKPOINT_GRACE + GRACE_STEPS * (now() - moment) / max(1, training - step)

    def _end_all(self, at_once: bool = False) -> None:
        """Whatever happens here, nothing stays behind; a second interrupt ends the courtesy."""
        with contextlib.suppress(KeyboardInterrupt):
            if not at_once:
                self._requests.begin(self._ask_for_checkpoint())
                self._watch()
        for worker in self.workers:
            if worker.status is None:
                signal_group(worker, signal.SIGKILL)
                reap(worker, wait=True)

    def _sweep(self) -> None:
        """End the processes left, with their children; then read the pipes to their end, then free the memory."""
        for worker in self.workers:
            signal_group(worker, signal.SIGKILL)
            reap(worker, wait=True)
        self._outlets.drain(1.0, TICK)
        if self.supervisor is not None:
            for line in self.supervisor.never_entered():
                self.watcher.note(line)
            self.supervisor.close(well=self._service_failure is None and blame(self.workers) is None)
        self._services.close()
        self.place.close()
        self._pass_on()
        self.announcement.close()
        self.arena.close()
        for meeting in self.job.dir.glob("rendezvous-*"):  # of a process group that had no time to remove it
            meeting.unlink(missing_ok=True)


def _signal_words(number: int) -> str:
    known = {each.value: each.name for each in signal.Signals}
    return known.get(number, f"signal {number}") if number else "no reason given"
