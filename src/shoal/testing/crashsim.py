"""Every state in which a crash may leave a writer's files, built without crashing anything.

    disk = RecordedDisk(folder)         the real files, and a list of what was asked
    write(disk)
    for state in disk.crashes():        SIGKILL before each call and inside each write, and loss of power
        state.build(other_folder); assert recover(other_folder) is old or new

SIGKILL loses nothing that was handed to the kernel. Power loses, in any combination: content not synced since it was
written (missing, half there, or zeros of the right length), and names not synced since they changed. Combinations are
many, so for each moment a fixed set of telling ones is built, and some drawn from a seeded generator.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.disk import Buffer, FileOperations

ROOT = 0
LOST, HALF, ZEROS, WHOLE = "lost", "half", "zeros", "whole"


@dataclass(frozen=True)
class DiskOperation:
    """One call. Files and folders go by number, so that a lost name does not lose what it stood for."""

    kind: str
    """content, cut, link, unlink, move, sync or sync_folder; a `settled` one was there before."""
    node: int
    name: str = ""
    data: bytes = b""
    target: int = -1
    """The file or folder that a name refers to."""
    old: tuple[int, str] = (-1, "")
    """Of a move: folder and name it had."""
    folder: bool = False
    at: int = 0
    """Of content: where in the file; of a cut: how much stays."""


@dataclass
class DiskTree:
    """Files as a disk holds them: contents, and names in folders."""

    content: dict[int, bytes] = field(default_factory=dict)
    folders: set[int] = field(default_factory=lambda: {ROOT})
    names: dict[tuple[int, str], int] = field(default_factory=dict)

    def apply(self, op: DiskOperation, how: str = WHOLE) -> None:
        if how == LOST:
            return
        if op.kind == "content":
            # Zeros of the right length: a file's size may reach the disk before its content.
            data = {HALF: op.data[: len(op.data) // 2], ZEROS: bytes(len(op.data))}.get(how, op.data)
            before = self.content.get(op.node, b"")
            # what was written behind something lost is behind a hole, not in its place
            self.content[op.node] = before[: op.at].ljust(op.at, b"\0") + data + before[op.at + len(data) :]
        elif op.kind == "cut":
            self.content[op.node] = self.content.get(op.node, b"")[: op.at]
        elif op.kind == "link":
            (self.folders.add(op.target) if op.folder else self.content.setdefault(op.target, b""))
            self.names[(op.node, op.name)] = op.target
        elif op.kind == "unlink":
            self.names.pop((op.node, op.name), None)
        elif op.kind == "move":
            self.names.pop(op.old, None)
            (self.folders.add(op.target) if op.folder else self.content.setdefault(op.target, b""))
            self.names[(op.node, op.name)] = op.target

    def build(self, path: Path, node: int = ROOT) -> None:
        """Write it down as real files in the empty folder `path`."""
        path.mkdir(parents=True, exist_ok=True)
        for (folder, name), target in self.names.items():
            if folder == node and target in self.folders:
                self.build(path / name, target)
            elif folder == node:
                (path / name).write_bytes(self.content.get(target, b""))


@dataclass(frozen=True)
class CrashState:
    """One state after a crash, and how it came about."""

    what: str
    tree: DiskTree

    def build(self, path: Path) -> None:
        self.tree.build(path)


class RecordedDisk(FileOperations):
    """A real disk below `root` that remembers. What is there already counts as durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ops: list[DiskOperation] = []
        self._nodes: dict[Path, int] = {root: ROOT}
        self._files: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._count = ROOT
        for path in sorted(root.rglob("*")):
            self._link(path, path.is_dir())
            if path.is_file():
                self._write(self._nodes[path], path.read_bytes())
        self.settled = len(self.ops)

    def make_folder(self, path: Path) -> None:
        if not path.exists():
            super().make_folder(path)
            self._link(path, True)

    def create(self, path: Path, mode: int = 0o644) -> int:
        there = path.exists()
        file = super().create(path, mode)
        if there:
            self._cut(self._nodes[path], 0)
        else:
            self._link(path, False)
        self._files[file] = self._nodes[path]
        return file

    def extend(self, path: Path) -> int:
        there = path.exists()
        file = super().extend(path)
        if not there:
            self._link(path, False)
        self._files[file] = self._nodes[path]
        return file

    def write(self, file: int, data: Buffer) -> None:
        super().write(file, data)
        self._write(self._files[file], bytes(data))

    def _write(self, node: int, data: bytes) -> None:
        at = self._sizes.get(node, 0)
        self.ops.append(DiskOperation("content", node, data=data, at=at))
        self._sizes[node] = at + len(data)

    def cut(self, path: Path, size: int) -> None:
        super().cut(path, size)
        self._cut(self._nodes[path], size)

    def _cut(self, node: int, size: int) -> None:
        self.ops.append(DiskOperation("cut", node, at=size))
        self._sizes[node] = size

    def sync(self, file: int) -> None:
        super().sync(file)
        self.ops.append(DiskOperation("sync", self._files[file]))

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self.ops.append(DiskOperation("sync_folder", self._nodes[path]))

    def rename(self, old: Path, new: Path) -> None:
        folder = old.is_dir()
        super().rename(old, new)
        moved = {path: number for path, number in self._nodes.items() if path == old or old in path.parents}
        for path, number in moved.items():
            del self._nodes[path]
            self._nodes[new / path.relative_to(old)] = number
        target = self._nodes[new]
        place = self._nodes[old.parent]
        self.ops.append(
            DiskOperation("move", self._nodes[new.parent], new.name, b"", target, (place, old.name), folder)
        )

    def remove(self, path: Path) -> None:
        """A folder goes file by file, as the operating system would have it."""
        if path.is_dir():
            for inner in sorted(path.iterdir()):
                self.remove(inner)
        if path.exists():
            super().remove(path)
            self.ops.append(DiskOperation("unlink", self._nodes[path.parent], path.name))
            del self._nodes[path]

    def _link(self, path: Path, folder: bool) -> None:
        self._count += 1
        self._nodes[path] = self._count
        self.ops.append(DiskOperation("link", self._nodes[path.parent], path.name, b"", self._count, folder=folder))

    def crashes(self, seed: int = 0, drawn: int = 4) -> Iterator[CrashState]:
        """Every state; `drawn` random ones for each moment of a loss of power."""
        # Seeded: a state that fails can be built again.
        chance = random.Random(seed)
        for moment in range(self.settled, len(self.ops) + 1):
            yield CrashState(f"killed before call {moment}", self._replay(moment, {}))
            if moment < len(self.ops) and self.ops[moment].kind == "content":
                # The kernel may have taken a part of a write when the process was killed.
                yield CrashState(f"killed inside write {moment}", self._replay(moment + 1, {moment: HALF}))
            loose = [i for i in range(self.settled, moment) if not self._safe(i, moment)]
            for name, fates in self._losses(loose, chance, drawn):
                yield CrashState(f"no power before call {moment}: {name}", self._replay(moment, fates))

    def _replay(self, moment: int, fates: dict[int, str]) -> DiskTree:
        tree = DiskTree()
        for index, op in enumerate(self.ops[:moment]):
            tree.apply(op, fates.get(index, WHOLE))
        return tree

    def _safe(self, index: int, moment: int) -> bool:
        """Return whether call `index` was made durable before `moment`."""
        op = self.ops[index]
        if op.kind in ("sync", "sync_folder"):
            return True
        wanted = ("sync", op.node) if op.kind in ("content", "cut") else ("sync_folder", op.node)
        # A sync of the file makes its content durable; its name needs a sync of the folder.
        return any((later.kind, later.node) == wanted for later in self.ops[index:moment])

    def _losses(self, loose: list[int], chance: random.Random, drawn: int) -> Iterator[tuple[str, dict[int, str]]]:
        if not loose:
            return
        contents = [i for i in loose if self.ops[i].kind == "content"]
        names = [i for i in loose if i not in contents]
        yield "all that was not synced", dict.fromkeys(loose, LOST)
        if contents and names:
            yield "content only", dict.fromkeys(contents, LOST)
            yield "names only", dict.fromkeys(names, LOST)
        if contents:
            yield "content half there", dict.fromkeys(contents, HALF)
            yield "content is zeros", dict.fromkeys(contents, ZEROS)
        # Each name lost alone: of two that were changed, the later may reach the disk first.
        for index in names if len(names) > 1 else []:
            yield f"call {index} alone", {index: LOST}
        for number in range(drawn if len(loose) > 1 else 0):
            fates = {i: chance.choice([LOST, HALF, ZEROS, WHOLE] if i in contents else [LOST, WHOLE]) for i in loose}
            yield f"some, draw {number}", fates
