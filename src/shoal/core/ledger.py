"""The ledger of a run: which positions of each pass over the data were consumed by which steps.

    opened    a pass, and how many positions it has
    took      steps a to b consumed positions from–to of a stream, or the script skipped them
    finished  the pass came to its end
    resumed   the run goes on from a checkpoint after step s: whatever later steps took is void

Positions determine samples: the order is a pure function of seed, epoch and pass. `prove` counts, from the records
alone, what was consumed twice and what never. An evicted worker that wakes up may still write; the worker that took
over from it has written a higher fence, and what comes below it afterwards is passed over.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from shoal.core.log import read_log, rewrite_log


class LedgerEntry(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    """Base of what stands in a ledger."""

    fence: tuple[int, int] = (0, 0)
    """Attempt, and generation of the view in which its writer began to write."""


class PassEntry(LedgerEntry, frozen=True, kw_only=True):
    """About one pass over one loader."""

    loader: int
    epoch: int
    number: int
    """Which pass of this loader in this epoch."""

    @property
    def key(self) -> tuple[int, int, int]:
        return self.epoch, self.loader, self.number


class PassOpened(PassEntry, tag="opened", frozen=True, kw_only=True):
    items: int | None
    """Positions of the pass; None if their number is unknown before its end."""


class SamplesTaken(PassEntry, tag="took", frozen=True, kw_only=True):
    stream: int
    begin: int
    end: int
    samples: int
    first: int
    """The steps that used them, counted from 1: after step s, s steps are done."""
    last: int
    skipped: bool = False
    """Whether the worker's script skipped them, that is, ran no backward pass for them."""


class PassFinished(PassEntry, tag="finished", frozen=True, kw_only=True):
    step: int
    drops: int
    """At the end, fewer positions than this may have been left out on purpose."""


class RunResumed(LedgerEntry, tag="resumed", frozen=True, kw_only=True):
    step: int
    attempt: int
    workers: int


AnyEntry = PassOpened | SamplesTaken | PassFinished | RunResumed
_decoder: msgspec.json.Decoder[AnyEntry] = msgspec.json.Decoder(AnyEntry)


class LedgerProof(msgspec.Struct, kw_only=True):
    """The fate of the positions of one pass."""

    epoch: int
    samples: int = 0
    missing: int = 0
    """Positions that no worker has used (yet, if the pass is not finished)."""
    duplicate: int = 0
    loader: int = 0
    number: int = msgspec.field(default=0, name="pass")
    skipped: int = 0
    """Samples that were dealt, and skipped by the script of the worker that had them."""
    dropped: int = 0
    """Left out at the end because the script asked for it (`drop_last`)."""
    finished: bool = False


def ledger_file(directory: Path) -> Path:
    return directory / "ledger.log"


def read_ledger(directory: Path) -> Iterable[AnyEntry]:
    """Return the entries of a run's ledger, in order, without a torn last one."""
    return (_decoder.decode(record) for record in read_log(ledger_file(directory)))


def rewrite_ledger(directory: Path, entries: Iterable[AnyEntry]) -> None:
    """Put these entries in the place of all that are there; a crash leaves those or these."""
    rewrite_log(ledger_file(directory), map(msgspec.json.encode, entries))


def last_step(entries: Iterable[AnyEntry]) -> int:
    """The last one that any entry tells of."""
    return max(
        (
            e.last if isinstance(e, SamplesTaken) else e.step
            for e in entries
            if isinstance(e, SamplesTaken | PassFinished)
        ),
        default=0,
    )


def committed(entries: Iterable[AnyEntry]) -> list[AnyEntry]:
    """Without what a later attempt took back, and without what its writer had no right to write any more."""
    kept: list[AnyEntry] = []
    fence = (0, 0)
    for entry in entries:
        # Written by a worker that had been given up, after its successor began.
        if entry.fence < fence:
            continue
        fence = entry.fence
        # A checkpoint takes back whole entries: `merged` joins none across a step at which one may be taken.
        if isinstance(entry, RunResumed):
            kept = [e for e in kept if not _void(e, entry.step)]
        else:
            kept.append(entry)
    return kept


def merged(entries: Iterable[AnyEntry], cuts: Sequence[int], since: int = 0) -> list[AnyEntry]:
    """Ranges of one pass and stream that follow each other as one entry: the proof stays the same.

    None reaches over one of `cuts`, in order: steps after which somebody may go on, and take back whole entries. What
    was taken up to step `since` is left as it is.
    """
    found: list[AnyEntry] = []
    last: dict[tuple[object, int], int] = {}
    for entry in entries:
        if not isinstance(entry, SamplesTaken):
            found.append(entry)
            continue
        place = last.get((entry.key, entry.stream))
        before = found[place] if place is not None else None
        if (
            place is not None
            and isinstance(before, SamplesTaken)
            and before.first > since
            and _joins(before, entry, cuts)
        ):
            found[place] = join_ranges(before, entry)
        else:
            last[entry.key, entry.stream] = len(found)
            found.append(entry)
    return found


def follows(first: SamplesTaken, second: SamplesTaken) -> bool:
    """Return whether one range ends where the other begins, and both had the same fate."""
    return first.end == second.begin and first.skipped == second.skipped


def join_ranges(first: SamplesTaken, second: SamplesTaken) -> SamplesTaken:
    samples = first.samples + second.samples
    return msgspec.structs.replace(first, end=second.end, samples=samples, last=second.last)


def _joins(first: SamplesTaken, second: SamplesTaken, cuts: Sequence[int]) -> bool:
    if not follows(first, second) or first.fence != second.fence or first.last > second.last:
        return False
    place = bisect_left(cuts, first.first)
    return place == len(cuts) or cuts[place] >= second.last


def _void(entry: AnyEntry, step: int) -> bool:
    return (isinstance(entry, SamplesTaken) and entry.last > step) or (
        isinstance(entry, PassFinished) and entry.step > step
    )


def prove(entries: Iterable[AnyEntry]) -> list[LedgerProof]:
    """One line for each pass that was trained on, in order."""
    kept = committed(entries)
    items = {e.key: e.items for e in kept if isinstance(e, PassOpened)}
    ends = {e.key: e.drops for e in kept if isinstance(e, PassFinished)}
    taken: dict[tuple[int, int, int], list[SamplesTaken]] = {}
    for entry in kept:
        if isinstance(entry, SamplesTaken):
            taken.setdefault(entry.key, []).append(entry)
    return [_prove(entries, items.get(key), ends.get(key)) for key, entries in sorted(taken.items())]


def _prove(entries: list[SamplesTaken], items: int | None, drops: int | None) -> LedgerProof:
    first = entries[0]
    proof = LedgerProof(epoch=first.epoch, loader=first.loader, number=first.number, finished=drops is not None)
    distinct = 0
    reached: dict[int, int] = {}
    holes = 0
    # in order of place, so that overlaps and holes lie between neighbours
    for entry in sorted(entries, key=lambda e: (e.stream, e.begin)):
        so_far = reached.get(entry.stream, 0)
        proof.samples += 0 if entry.skipped else entry.samples
        proof.skipped += entry.samples if entry.skipped else 0
        proof.duplicate += max(0, min(so_far, entry.end) - entry.begin)
        holes += max(0, entry.begin - so_far)
        distinct += max(0, entry.end - max(so_far, entry.begin))
        reached[entry.stream] = max(so_far, entry.end)
    # Without a known length only gaps can be noticed, not a missing end.
    proof.missing = holes if items is None else items - distinct
    # drop_last leaves out the end of a pass; positions that are missing before it are lost.
    if drops and not holes and proof.missing < drops:
        proof.dropped, proof.missing = proof.missing, 0
    return proof
