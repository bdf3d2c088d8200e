"""Groups over links for worlds of workers: through files of this host, or over loopback under keys."""

from pathlib import Path

from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.testing.world import ENDINGS, WorkerWorld
from shoal.transport.endpoint import BookEntry, LinkEndpoint, book_in
from shoal.transport.keys import CurveKeyPair


def linked_by_files(group: WorkerGroup, folder: Path) -> LinkedGroup:
    book = book_in(folder / "sockets", group.size)
    return _ending(LinkedGroup("run", book, group.rank, LinkEndpoint(book[group.rank].address), group.board))


def linked_by_keys(group: WorkerGroup) -> LinkedGroup:
    keys = CurveKeyPair.new()
    endpoint = LinkEndpoint("tcp://127.0.0.1:*", keys)
    told = group.gather(f"{endpoint.address} {keys.public.decode()}".encode())
    book = {rank: BookEntry(*_entry(text)) for rank, text in enumerate(told)}
    return _ending(LinkedGroup("run", book, group.rank, endpoint, group.board))


def _entry(text: bytes) -> tuple[str, bytes]:
    address, public = text.split(b" ")
    return address.decode(), public


def _ending(group: LinkedGroup) -> LinkedGroup:
    """A world's workers end without atexit."""
    ENDINGS.append(group.close)
    return group


def by_files(world: WorkerWorld) -> LinkedGroup:
    return linked_by_files(world.group, world.dir)


def by_keys(world: WorkerWorld) -> LinkedGroup:
    return linked_by_keys(world.group)
