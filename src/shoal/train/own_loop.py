"""Scripts that join no loader: where one of their iterations ends and the next begins.

A script that counts in `run.state(…)` assigns to it once an iteration, so a newcomer that starts with the same state
can enter between two. One that counts elsewhere cannot be entered, and is told so.
"""

import sys
from collections.abc import Sequence

from shoal.groups.base import WorkerGroup
from shoal.train.progress import StepProgress
from shoal.train.script_state import ScriptState

NO_COUNTERS = (
    "the script joins no loader and keeps its counters elsewhere than in run.state(…): a worker that is lost cannot "
    "come back, and --resume starts its loop from the beginning"
)
NO_OPTIMIZER = (
    "the script joins no optimizer: gradients are averaged, but no step is counted, there are no checkpoints and no "
    "comparisons of replicas; give join() the optimizer, if there is one"
)


class OwnLoop:
    """Of one worker; `states`: what the script keeps in `run.state`."""

    def __init__(self, group: WorkerGroup, progress: StepProgress, states: Sequence[ScriptState]) -> None:
        self.group, self.progress, self.states = group, progress, states
        self._last = (progress.step, 0)
        """The step, and how often the script had assigned to its state, when the loop last came round."""
        self._warned = False

    def begin(self) -> None:
        """The script goes on from a state; the loop comes round with the step after the next."""
        self._last = (self.progress.step, self._changes())

    def _changes(self) -> int:
        return sum(state.changes for state in self.states)

    def comes_round(self) -> bool:
        """Whether the script has made a step and counted it since this was last asked."""
        step, changes = self.progress.step, self._changes()
        if self.progress.has_loader or step == self._last[0]:
            return False
        if self.states and changes == self._last[1]:
            return False
        self._last = (step, changes)
        if not self.states and self.group.session.elastic:
            self.warn(NO_COUNTERS)
        return bool(self.states)

    def warn(self, text: str) -> None:
        """Once, and the first such thing only."""
        if not self._warned:
            self._warned = True
            self.progress.warn(text)
            if self.group.rank == 0:
                sys.stderr.write(f"shoal: {text}\n")
