"""How the state of a run gets from a member that trains to those that come later.

    donor       transfer.give(view, newcomers, data)      never waits for them
    newcomer    transfer.take(view, donor)                None as long as it is not there; asked again and again

On one host through a file in the run's folder, between hosts over links. Nobody needs it after the newcomers have it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from shoal.cluster.links.bequest import Giving, Taking
from shoal.cluster.links.mesh import Mesh
from shoal.cluster.membership.session import seat_of
from shoal.cluster.membership.view import View

LARGEST = 1 << 34
"""Bytes of a state that are taken at the most."""


class Transfer(ABC):
    """Of one worker."""

    @abstractmethod
    def give(self, view: View, newcomers: Sequence[str], data: bytes) -> None:
        """Once to each of them in a view."""

    @abstractmethod
    def take(self, view: View, donor: str) -> bytes | bytearray | None: ...


class ByFile(Transfer):
    """`handover-<epoch>` in a folder all workers see; whoever launched them removes what is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def give(self, view: View, newcomers: Sequence[str], data: bytes) -> None:
        for old in self.folder.glob("handover-*"):  # newcomers of earlier views have theirs
            old.unlink(missing_ok=True)
        part = self._file(view).with_suffix(".part")
        part.write_bytes(data)
        part.rename(self._file(view))

    def take(self, view: View, donor: str) -> bytes | None:
        try:
            return self._file(view).read_bytes()
        except FileNotFoundError:
            return None

    def _file(self, view: View) -> Path:
        return self.folder / f"handover-{view.epoch}"


class ByLinks(Transfer):
    """Straight from the donor's memory to the newcomers'."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._taking: tuple[View, Taking] | None = None

    def give(self, view: View, newcomers: Sequence[str], data: bytes) -> None:
        # the first of each newcomer's in its first view, however many are given something here
        self.mesh.submit(Giving(data, [seat_of(member) for member in newcomers]), number=0)

    def take(self, view: View, donor: str) -> bytearray | None:
        if self._taking is None or self._taking[0] != view:
            self._taking = (view, Taking(seat_of(donor), LARGEST))
            self.mesh.submit(self._taking[1], number=0)
        task = self._taking[1]
        return task.items[0] if task.done.is_set() and task.error is None else None
