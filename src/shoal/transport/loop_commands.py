"""What other threads want of a communication thread: queued for it, or done in its place while it sleeps.

    caller ── post ───────▶ queue ── wake ──▶ communication thread: run_all, in its turn
    caller ── run_at_once ▶ does it itself, if that thread sleeps and nothing is queued

To wake a thread costs two changes of threads, which take longer than sending a short message does.
"""

import threading
from collections import deque
from collections.abc import Callable

LoopCommand = Callable[[], None]


class LoopCommands:
    """The commands of one communication thread, and the lock on everything that it owns.

    The thread holds `turn` while it works and not while it sleeps, so it is either at work or may be replaced for a
    moment. Any thread may call `post` and `run_at_once`.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` ends the thread's sleep; it is called after each posted command."""
        self._wake = wake
        self._waiting: deque[LoopCommand] = deque()
        self.turn = threading.Lock()
        """No thread gets it after `end`."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def post(self, command: LoopCommand) -> None:
        """Have a command run soon by the communication thread."""
        self._waiting.append(command)
        self._wake()

    def run_at_once(self, command: LoopCommand) -> None:
        """Run a short command in this thread while the communication thread sleeps; else post it."""
        if self._waiting or not self.turn.acquire(blocking=False):  # what was posted before comes first
            self.post(command)
            return
        failure: BaseException | None = None
        try:
            command()
        except BaseException as error:  # noqa: BLE001  (it must end the communication thread, not this one)
            failure = error
        finally:
            self.turn.release()
        if failure is not None:
            self.post(_raising(failure))

    def run_all(self) -> None:
        """Run what was posted; in the communication thread, in its turn."""
        # As many as there are now: a command that posts itself again must not keep the thread from its sockets.
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()

    def end(self) -> None:
        """Let no thread take a turn any more: the communication thread is about to close what it owns."""
        self.turn.acquire()


def _raising(error: BaseException) -> LoopCommand:
    def command() -> None:
        raise error

    return command
