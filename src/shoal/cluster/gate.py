"""A gate on the board: no worker begins a step before what a lab plans for that step has happened."""

import time

from shoal.cluster.board import Board
from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, PeerLost

PAUSE = 1e-3


def pass_gate(board: Board, rank: int, step: int, seconds: float) -> None:
    """Return when `step` may begin; at once where no lab is."""
    if not board.closed(step):
        return
    deadline = Deadline.after(seconds)
    while board.closed(step):
        if board.aborted is not None:
            raise PeerLost(f"worker {rank} stops: worker {board.aborted} is lost")
        if deadline.expired:
            raise DeadlineError(
                f"worker {rank} waited {seconds:.0f} s for the launcher to play the events of step {step}"
            )
        time.sleep(PAUSE)
