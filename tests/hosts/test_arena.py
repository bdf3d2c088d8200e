"""Shared memory without a name."""

import mmap
import os
import resource

import pytest

from shoal.core.errors import ShoalError
from shoal.hosts.arena import SharedArena, pages

PAGE = mmap.ALLOCATIONGRANULARITY


def test_two_maps_show_the_same_memory() -> None:
    arena = SharedArena.create()
    one, other = arena.map(0, PAGE), arena.map(0, PAGE)
    one[:5] = b"shoal"
    assert other[:5] == b"shoal"
    arena.close()
    assert one[:5] == b"shoal", "a map outlives the descriptor"


def test_it_grows_and_keeps_what_it_holds() -> None:
    arena = SharedArena.create()
    first = arena.map(0, PAGE)
    first[:1] = b"x"
    last = arena.map(5 * PAGE, 2 * PAGE)
    assert os.fstat(arena.descriptor).st_size == 7 * PAGE
    assert bytes(last[:]) == bytes(2 * PAGE)
    assert arena.map(0, 7 * PAGE)[:1] == b"x"
    arena.close()


def test_it_has_no_name() -> None:
    before = set(os.listdir("/dev/shm"))
    arena = SharedArena.create()
    arena.map(0, PAGE)
    assert set(os.listdir("/dev/shm")) <= before
    assert os.fstat(arena.descriptor).st_nlink == 0
    assert not os.get_inheritable(arena.descriptor)
    arena.close()


def test_another_process_opens_it_by_its_creator() -> None:
    arena = SharedArena.create()
    arena.map(0, PAGE)[:2] = b"hi"
    same = SharedArena.of_process(os.getpid(), arena.descriptor)
    assert same.descriptor != arena.descriptor
    assert same.map(0, PAGE)[:2] == b"hi"
    same.close()
    arena.close()
    with pytest.raises(OSError):
        SharedArena.of_process(os.getpid(), same.descriptor)


def test_closing_twice_is_closing_once() -> None:
    arena = SharedArena.create()
    arena.close()
    arena.close()
    assert arena.descriptor == -1


def test_too_little_memory_is_said_at_once() -> None:
    arena = SharedArena.create()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(ShoalError, match="cannot reserve 8 MiB of shared memory: File too large; free memory"):
            arena.map(0, 8 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        arena.close()


def test_sizes_are_rounded_up_to_pages() -> None:
    assert [pages(size) for size in (0, 1, PAGE, PAGE + 1)] == [0, PAGE, PAGE, 2 * PAGE]
