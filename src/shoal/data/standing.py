"""A loader's position during training, as a checkpoint keeps it."""

from collections.abc import Mapping

import msgspec

from shoal.data.remaining import Left, Range, RemainingSamples


class OpenPass(msgspec.Struct, frozen=True):
    """The rest of one stream of a pass that was under way."""

    number: int
    stream: int
    position: int
    returned: list[Range]


class LoaderPosition(msgspec.Struct, frozen=True):
    """The passes of one loader in one epoch: done, or under way."""

    epoch: int = 0
    done: list[int] = []
    """Numbers of the passes that were trained on to their end."""
    open: list[OpenPass] = []
    first: int = 0
    """Number of the epoch's first pass: above 0 if the script goes through the same epoch again."""

    @classmethod
    def of(cls, epoch: int, done: list[int], left: Mapping[int, Left], first: int = 0) -> "LoaderPosition":
        """`left`: number of a pass -> what remains of it."""
        opened = [
            OpenPass(number, stream, rest.position, list(rest.returned))
            for number, streams in left.items()
            for stream, rest in streams.items()
        ]
        return cls(epoch, sorted(done), opened, first)

    def left(self, epoch: int, number: int) -> Left | None:
        """Return the rest of a pass; None if it was finished before, and must not be repeated."""
        if epoch == self.epoch and number in self.done:
            return None
        mine = [o for o in self.open if epoch == self.epoch and o.number == number]
        return {o.stream: RemainingSamples(o.position, tuple(o.returned)) for o in mine}
