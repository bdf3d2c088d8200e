"""Two stages: every worker owns a share of the bucket, adds up all payloads of it, and encodes the sum again.

    start(i)        each share is encoded by itself and leaves for its owner; the backward pass goes on
    first finish    for every bucket: the owner decodes p payloads of its share, adds them up in order of rank, encodes
                    the sum with a residual of its own, and everybody gets that
    finish(i)       p decoded shares are the sum

With p workers each sends about 2 (p-1)/p payloads instead of p - 1, and decodes two instead of p. Error feedback on
both sides: Tang et al., "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-pass Error-Compensated
Compression", ICML 2019; 1-bit Adam (Tang et al., ICML 2021) exchanges in the same way. sent + residuals of workers +
residuals of owners = what there was. Do not use it for sparsifiers: what p workers chose hardly overlaps, so a sum is
either p times as dense or waits a second time; nor where one latency more than the all-gather's costs more than bytes.
Shares are those of one view: where members change, `elastic.py` makes another aggregator and begins again.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError, UsageError
from shoal.sync.aggregate.base import StatefulAggregator
from shoal.sync.aggregate.gather import NON_FINITE, TRIAL
from shoal.sync.aggregate.presence import Marks, no_marks, without_state_of
from shoal.sync.aggregate.share_payload import add_share, pack_share, place_of, put_back, write_empty
from shoal.sync.aggregate.shares import BucketCut, BucketShare, cut, rooms
from shoal.sync.engine.base import PayloadEngine, PayloadSpec
from shoal.wire.codec import GradientCodec, State
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.redeal import OWNER, PLACE
from shoal.wire.wrappers.feedback import RESIDUAL
from shoal.wire.wrappers.parts import PartialCodec


class TwoStageAggregator(StatefulAggregator):
    """For dense codecs. Of n buckets, bucket i's second payload has number n + i."""

    kind = "twostage"
    retryable = False
    engine: PayloadEngine

    def __init__(
        self, codec: GradientCodec, engine: PayloadEngine, rank: int, size: int, seed: int, most: int = 0
    ) -> None:
        """`most`: the most workers of any view, where shared memory must be reserved for them now."""
        if not codec.divisible:
            raise UsageError(f"{type(codec).__name__} has no dense payloads to meet in two stages; use meet(gather)")
        self.rule = cast(PartialCodec, codec)
        self.codec, self.engine, self.rank, self.size, self.seed = self.rule.codec, engine, rank, size, seed
        # a sum of p workers may be p times as large as what one of them sends
        self.owner = self.codec.for_sum_of(size)
        self._most = most
        self._halfway: list[int] = []
        """Buckets of this exchange whose second payload has not been posted yet, in order."""
        self._all_posted = False
        """Whether all first payloads are: payloads are posted in the same order on all workers."""

    def _open(self, layouts: Sequence[FlatLayout]) -> None:
        self._cuts = [cut(self.rule, layout, self.size) for layout in layouts]
        self._states = [self.codec.init_state(c.coded.layout) for c in self._cuts]
        self._own_states = [self.owner.init_state(c.shares[self.rank].layout) for c in self._cuts]
        self._areas = self.engine.open(self._specs())
        self._steps = [0] * len(layouts)
        self._lengths = [0] * len(layouts)  # of the second payloads
        self._counts: list[list[float]] = [[]] * len(layouts)
        for codec in (self.codec, self.owner):  # compile what is not compiled yet now, not in the first step
            codec.decode(codec.encode(torch.linspace(-1, 1, TRIAL.numel), TRIAL)[0], TRIAL)

    def _specs(self) -> list[PayloadSpec]:
        """Return the specs of all first payloads, then of all second ones."""
        exact, bounds = self.codec.fixed_size, [made.max_bytes(self.codec) for made in self._cuts]
        room = [rooms(self.rule, made.layout, self._most) for made in self._cuts]
        first = [PayloadSpec(b, exact, self.size, all_) for b, (all_, _) in zip(bounds, room, strict=True)]
        return first + [PayloadSpec(b, exact, room=one) for b, (_, one) in zip(bounds, room, strict=True)]

    def prepare(self) -> None:
        self.engine.prepare()
        self._halfway, self._all_posted = [], False

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        made, area = self._cuts[index], self._areas[index]
        coded, plain, state = made.coded.of(values), made.plain.of(values), self._states[index]
        bound, longest, size = area.numel() // self.size, 0, 0
        with self._without_absent(made, self.codec.name_state(state, made.coded.layout), present):
            for owner, share in enumerate(made.shares):
                # a number for each share, so that random codecs draw other numbers in each
                moment = EncodeContext(self.seed, self._steps[index], self.rank, index * self.size + owner)
                piece = area[owner * bound : (owner + 1) * bound]
                own = {name: tensor[share.coded] for name, tensor in state.items()}
                length = pack_share(
                    self.codec, made, share, (coded[share.coded], plain[share.plain]), own, moment, present, piece
                )
                longest, size = max(longest, length), size + length
        self._steps[index] += 1
        self.observer.sent_bytes += size
        self._halfway.append(index)
        # pieces travel at the length of the longest (`PayloadSpec.pieces`)
        self.engine.post(index, longest)

    def start_non_finite(self, index: int) -> None:
        start, bound = self._cuts[index].prefix, self._areas[index].numel() // self.size
        for owner in range(self.size):
            write_empty(NON_FINITE, self._areas[index][owner * bound :][:start])
        self._steps[index] += 1
        self.observer.sent_bytes += self.size * start
        self._halfway.append(index)
        self.engine.post(index, start)

    def _without_absent(self, made: BucketCut, named: State, present: Sequence[bool]) -> AbstractContextManager[None]:
        if all(present):
            return nullcontext()
        return without_state_of({p.name for p, here in zip(made.layout.parts, present, strict=True) if not here}, named)

    def all_started(self) -> None:
        super().all_started()
        self._all_posted = True

    def progress(self) -> None:
        """Where a round travels while the training goes on, its second stage begins as soon as it can."""
        super().progress()
        while self._all_posted and self._halfway and self.engine.is_done(self._halfway[0]):
            self._post_share_sum(self._halfway.pop(0))

    def is_done(self, index: int) -> bool:
        return False  # the second stage does not begin before the first bucket is finished

    def residual(self, index: int) -> Tensor | None:
        return self._states[index].get(RESIDUAL)

    def await_arrival(self, index: int) -> None:
        for started in self._halfway:
            self._post_share_sum(started)
        self._halfway = []
        with self.waiting():
            self.engine.await_payloads(len(self._cuts) + index)

    def finish(self, index: int, out: Tensor) -> list[float]:
        self.await_arrival(index)
        made, number = self._cuts[index], len(self._cuts) + index
        with self.waiting():
            payloads = self.engine.collect(number)
        coded, plain = place_of(made.coded, out), place_of(made.plain, out)
        for rank, (payload, share) in enumerate(zip(payloads, made.shares, strict=True)):
            place = coded[share.coded], plain[share.plain]
            if self._add_or_reject(self.owner, rank, payload, made, share, place, fresh=True) is None:
                self._counts[index] = no_marks(len(made.layout.parts), non_finite=True).tolist()
        put_back(made.coded, coded, out)
        put_back(made.plain, plain, out)
        self.engine.release(number)
        self.observer.sent_bytes += self._lengths[index]
        self.observer.wire_bytes += self.engine.wire_bytes(index) + self.engine.wire_bytes(number)
        return self._counts[index]

    def _post_share_sum(self, index: int) -> None:
        """Add up all payloads of the share this worker owns, and post the sum as the second payload."""
        made = self._cuts[index]
        share = made.shares[self.rank]
        with self.waiting():
            payloads = self.engine.collect(index)
        total = torch.empty(share.layout.numel), torch.empty(share.plain_layout.numel)
        counts = np.zeros(len(made.layout.parts))
        for rank, payload in enumerate(payloads):
            marks = self._add_or_reject(self.codec, rank, payload, made, share, total, fresh=rank == 0)
            counts += no_marks(len(counts), non_finite=True) if marks is None else marks
        self.engine.release(index)
        self._counts[index] = counts.tolist()
        present = [bool(count) for count in counts]
        state, number = self._own_states[index], len(self._cuts) + index
        if np.isnan(counts).any():  # nobody uses the sum: the owner keeps its residual
            write_empty(NON_FINITE, self._areas[number][: made.prefix])
            self._lengths[index] = made.prefix
            self.engine.post(number, made.prefix)
            return
        # what nobody has, nobody would use: the owner keeps its residual of it
        with self._without_absent(made, self.owner.name_state(state, share.layout), present):
            # beyond all ranks: the second encoding must not draw the numbers of a first one
            moment = EncodeContext(self.seed, self._steps[index], self.size + self.rank, index)
            length = pack_share(self.owner, made, share, total, state, moment, present, self._areas[number])
        self._lengths[index] = length
        self.engine.post(number, length)

    def _add_or_reject(
        self,
        codec: GradientCodec,
        rank: int,
        payload: Tensor,
        made: BucketCut,
        share: BucketShare,
        out: tuple[Tensor, Tensor],
        fresh: bool,
    ) -> Marks | None:
        """As `add_share`; None if the payload of a remote worker cannot be read: then nobody uses the sum."""
        try:
            return add_share(codec, rank, payload, made, share, out, fresh)
        except PayloadError as error:
            self.engine.reject(rank, error)
            return None

    def is_complete(self) -> bool:
        return not self._halfway and self.engine.is_complete()

    def changed_tensors(self, index: int) -> list[Tensor]:
        return [*self._states[index].values(), *self._own_states[index].values()]

    def merge_residuals(self) -> None:
        """Add the owner's residuals to this worker's own: both are parts of the same sum."""
        for made, state, own in zip(self._cuts, self._states, self._own_states, strict=True):
            for name, kept in own.items():
                state[name][made.shares[self.rank].coded] += kept
                kept.zero_()

    def state(self) -> State:
        found: State = {}
        for made, state, own in zip(self._cuts, self._states, self._own_states, strict=True):
            share = made.shares[self.rank]
            found |= self.codec.name_state(state, made.coded.layout)
            begins = {part.name: max(0, share.coded.start - part.offset) for part in made.coded.layout.parts}
            for name, kept in self.owner.name_state(own, share.layout).items():
                layer = name.partition(".")[2]
                found |= {f"{OWNER}.{layer}": kept, f"{PLACE}.{layer}": torch.tensor([begins[layer]])}
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue as the owner of the same share; residuals of another share become this worker's own."""
        given, mine = dict(state), self.state()
        for name, kept in mine.items():
            kind, _, layer = name.partition(".")
            if kind == OWNER and name in given and given[name].shape == kept.shape:
                place = mine[f"{PLACE}.{layer}"]
                if torch.equal(given.get(f"{PLACE}.{layer}", place), place):
                    kept.copy_(given.pop(name))
        super().load(given)
