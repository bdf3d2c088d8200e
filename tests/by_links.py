"""Groups over links for worlds of workers: through files of this host, or over loopback under keys."""

from pathlib import Path

from shoal.cluster.group import Group
from shoal.cluster.linked import LinkedGroup
from shoal.cluster.links.book import Entry, book_in
from shoal.cluster.links.door import Door
from shoal.cluster.links.keys import Keys
from shoal.testing.world import ENDINGS, World


def linked_by_files(group: Group, folder: Path) -> LinkedGroup:
    book = book_in(folder / "sockets", group.size)
    return _ending(LinkedGroup("run", book, group.rank, Door(book[group.rank].address), group.board))


def linked_by_keys(group: Group) -> LinkedGroup:
    keys = Keys.new()
    door = Door("tcp://127.0.0.1:*", keys)
    told = group.gather(f"{door.address} {keys.public.decode()}".encode())
    book = {rank: Entry(*_entry(text)) for rank, text in enumerate(told)}
    return _ending(LinkedGroup("run", book, group.rank, door, group.board))


def _entry(text: bytes) -> tuple[str, bytes]:
    address, public = text.split(b" ")
    return address.decode(), public


def _ending(group: LinkedGroup) -> LinkedGroup:
    """A world's workers end without atexit."""
    ENDINGS.append(group.close)
    return group


def by_files(world: World) -> LinkedGroup:
    return linked_by_files(world.group, world.dir)


def by_keys(world: World) -> LinkedGroup:
    return linked_by_keys(world.group)
