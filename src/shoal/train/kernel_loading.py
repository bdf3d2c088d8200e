"""Loads the compiled kernels of a plan that may be switched to, while the training goes on by the plan before.

Importing numba and loading kernels takes most of a second of computing, in which all other workers would wait. It
begins when a switch is asked for or proposed, about a second before the step in which it is made.
"""

from threading import Thread

from shoal.core.errors import DeadlineError
from shoal.plan.plan import Plan
from shoal.train.compiling import kernels_of_plan
from shoal.wire import kernels


class KernelLoader:
    """Of one worker. Used by the training thread."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long kernels may take to load or to compile when they are waited for."""
        self._plan, self._seconds = "", seconds
        self._thread: Thread | None = None

    def begin(self, text: str, workers: int) -> None:
        """Load what the plan `text` needs, unless that is under way. The rest of a plan before is waited for."""
        if text == self._plan:
            return
        self.finish()
        self._plan = text
        wanted = kernels_of_plan(Plan.parse(text), workers, links=True)
        if wanted:
            self._thread = Thread(target=kernels.warm, args=(wanted, text), name="kernels", daemon=True)
            self._thread.start()

    @property
    def is_ready(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def finish(self) -> None:
        """Wait until it is done: two threads must not compile the same kernel."""
        if self._thread is None:
            return
        self._thread.join(self._seconds)
        if self._thread.is_alive():
            raise DeadlineError(f"kernels for '{self._plan}' have not been compiled within {self._seconds:.0f} s")
        self._thread = None
