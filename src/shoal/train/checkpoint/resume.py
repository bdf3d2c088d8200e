"""The way back: a checkpoint read once, given to what the script joins, and again where the training goes on.

    start()      where the run stood: epoch, step, samples
    join()       parameters, buffers, optimizers: whatever the script does next sees trained weights
    first batch  all of it again, with schedulers and random streams: what the script did in between is undone

Any number of workers may go on: all take the common state. Random streams are a worker's own, so one that was not
there before starts with fresh ones; what paces carry is shared out again, so that nothing of it is lost.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from shoal.core import seeds
from shoal.data.standing import LoaderPosition
from shoal.train.checkpoint.manifest import read_manifest, read_shard
from shoal.train.checkpoint.residuals import MARK, dealt_again, read_rules
from shoal.train.checkpoint.shard import parse
from shoal.train.checkpoint.snapshot import (
    STATEFUL,
    TrainingPosition,
    put_carried,
    put_common,
    put_random,
    put_stateful,
)
from shoal.train.checkpoint.tables import load_blocks
from shoal.train.joined import JoinedModels

State = tuple[dict[str, Tensor], dict[str, str]]
"""Named tensors and texts, as a shard holds them."""


class ResumeState:
    """What one worker goes on from: the common state, and its own if it had any."""

    def __init__(
        self, common: State, own: State | None, carried: Mapping[str, Tensor], *, rank: int, same: bool, seed: int
    ) -> None:
        self._tensors, self._texts = common
        self.where = msgspec.json.decode(self._texts["where"], type=TrainingPosition)
        self._own, self._carried, self._same, self._rank, self._seed = own, carried, same, rank, seed
        self._pending = True
        self._handed = False
        self._rows: list[Path] = []
        """Files with rows of tables, which this worker gives back to the servers."""

    @classmethod
    def from_checkpoint(cls, folder: Path, rank: int, size: int) -> "ResumeState":
        manifest = read_manifest(folder)

        def read(number: int) -> State:
            shard = manifest.shards[number]
            return parse(read_shard(folder, shard), f"{folder.name}/{shard.name}")

        common = read(0)
        own = None if rank >= manifest.workers else common if rank == 0 else read(rank)
        same = size == manifest.workers
        if same:
            carried = own[0] if own is not None else {}
        else:
            shards = [common if number == 0 else read(number) for number in range(manifest.workers)]
            carried = dealt_again([tensors for tensors, _ in shards], size, read_rules(common[1]))
        found = cls(common, own, carried, rank=rank, same=same, seed=manifest.seed)
        rows = [folder / shard.rows.name for shard in manifest.shards if shard.rows is not None]
        # any number of workers shares the files of those before
        found._rows = rows[rank::size]
        return found

    @classmethod
    def from_donor(cls, state: State, slot: int, seed: int) -> "ResumeState":
        """A newcomer's, handed over by a worker that trains."""
        carried = {name: tensor for name, tensor in state[0].items() if MARK in name}
        found = cls(state, None, carried, rank=max(1, slot), same=False, seed=seed)
        found._handed = True
        return found

    def handed(self, number: int) -> bool:
        """Whether the others have made join `number` already, so that nobody has to agree on it with this newcomer."""
        return self._handed and f"{number}.states" in self._texts

    @property
    def samples(self) -> int:
        """That this worker has consumed; with another number of workers, worker 0 carries those of all."""
        if self._same:
            return self.where.samples[self._rank]
        return sum(self.where.samples) if self._rank == 0 else 0

    def standing(self, loader: int) -> LoaderPosition | None:
        """Where loader number `loader` of the script stood."""
        return self.where.loaders[loader] if loader < len(self.where.loaders) else None

    def join(self, one: JoinedModels, number: int) -> None:
        """Give join `number` of the script its state."""
        if f"{number}.states" in self._texts:  # else it came later than the checkpoint
            put_common(one, number, self._tensors, self._texts)

    def load_tables(self, one: JoinedModels, number: int) -> None:
        """Give the tables of join `number` this worker's part of their rows, once they are open."""
        for path in self._rows:
            load_blocks(path, one, number)

    def give(self, thing: Any, place: int) -> None:
        """Give something that the script makes after its first join the state it had there."""
        put_stateful([thing], 0, place, self._tensors, self._texts)

    def begin_loop(self, joined: list[JoinedModels]) -> None:
        """The script has a loop of its own, which no loader tells of: it begins where the script asks for its state."""
        if self._pending:
            for number, one in enumerate(joined):
                self.join(one, number)
            self._put_own(joined)

    @property
    def midway(self) -> bool:
        """Whether the run stood in the middle of an epoch."""
        return any(loader.open for loader in self.where.loaders)

    def go_on(self, joined: list[JoinedModels]) -> None:
        """The training begins where it stood; called often, done once, and then the memory is given back."""
        if not self._pending:
            return
        self._pending = False
        for number, one in enumerate(joined):
            self.join(one, number)
        self._put_own(joined)
        self._own, self._carried = None, {}
        if f"{len(joined)}.states" not in self._texts:  # else the script has more to join
            self._tensors = {name: tensor for name, tensor in self._tensors.items() if STATEFUL in name}

    def _put_own(self, joined: list[JoinedModels]) -> None:
        for number, one in enumerate(joined):
            put_carried(one, number, self._carried)
        if self._own is not None:
            put_random(*self._own)
        else:
            seeds.seed_all(seeds.mix("joined", self._seed, self._rank, self.where.step))
