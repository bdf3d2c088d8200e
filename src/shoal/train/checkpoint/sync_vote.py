"""What workers tell each other when they synchronize, and what must hold of it: they are at the same step, and hold the
same parameters."""

from collections.abc import Sequence

import msgspec

from shoal.core.errors import DivergedError, PayloadError, PeerLost
from shoal.membership.view import MOST_MEMBERS
from shoal.train.balance import check_rate


class SyncVote(msgspec.Struct):
    """What a worker says when all synchronize; of `save`, `stop` and `next`, worker 0's counts."""

    step: int
    epoch_ended: bool
    fingerprint: int
    samples: int
    save: bool = False
    stop: bool = False
    next: int = 0
    slot: int = 0
    rate: float = 0.0
    """Samples per second this worker was busy; 0 if that is not known."""


def check_vote(mine: SyncVote, said: bytes) -> None:
    """Of a remote worker: one that is elsewhere, or holds other numbers, is spared; it does not end the run."""
    vote = msgspec.json.decode(said, type=SyncVote)
    if (vote.step, vote.epoch_ended) != (mine.step, mine.epoch_ended):
        raise PayloadError(f"it is at step {vote.step}, the others are at {mine.step}")
    if vote.fingerprint != mine.fingerprint:
        raise PayloadError(f"it holds other numbers than the others after step {mine.step}")
    check_rate(vote.rate)
    if not 0 <= vote.slot < MOST_MEMBERS:
        raise PayloadError(f"slot {vote.slot}; a run has at most {MOST_MEMBERS}")
    if not 0 <= vote.samples < 1 << 53:
        raise PayloadError(f"{vote.samples} samples; a worker has 0 or more")


def check_same(votes: Sequence[SyncVote]) -> None:
    """PeerLost if some workers ended their epoch where others went on: they will never agree again."""
    kinds = [(vote.epoch_ended, vote.step) for vote in votes]
    if len(set(kinds)) > 1:
        first, last = kinds.index(min(kinds)), kinds.index(max(kinds))
        raise PeerLost(
            f"worker {first} waits for worker {last}, which has ended its epoch after step {votes[last].step}; "
            "all workers must make the same number of steps"
        )


def check_equal(prints: Sequence[tuple[int, int]], step: int) -> None:
    """DivergedError if the fingerprints of workers, by slot, differ; names those that are not of the majority."""
    found = [one for _, one in prints]
    if len(set(found)) <= 1:
        return
    most = max(found, key=found.count)
    who = ", ".join(f"worker {slot}" for slot, one in prints if one != most)
    like = prints[found.index(most)][0]
    # without a majority it is not known which of them is wrong
    few = found.count(most) * 2 <= len(found)
    raise DivergedError(
        f"after step {step} {who} and worker {like} hold different parameters"
        f"{'' if few else f', so {who} has gone astray'}; does the script change them on some workers only?"
    )
