"""What is decided about a model holds in every process of the server."""

from pathlib import Path

from msgspec.structs import replace
from served import MemorySource, Scaled, core_of

from shoal.serve.control import NOTHING, SharedControl


def pin(control: SharedControl, name: str, number: int) -> None:
    control.change(name, lambda held: replace(held, pinned=number))


def test_a_process_alone_keeps_it_in_memory() -> None:
    control = SharedControl()
    pin(control, "m", 1)
    assert control.read()["m"].pinned == 1
    assert SharedControl().read() == {}


def test_every_process_reads_what_one_decided_and_nothing_is_lost(tmp_path: Path) -> None:
    first, second = SharedControl(tmp_path), SharedControl(tmp_path)
    assert first.read() == {}
    pin(first, "m", 1)
    pin(second, "n", 2)
    second.change("m", lambda held: replace(held, reason="slow"))
    assert first.read() == {"m": replace(NOTHING, pinned=1, reason="slow"), "n": replace(NOTHING, pinned=2)}


def test_a_roll_back_in_one_process_is_one_in_the_others(tmp_path: Path) -> None:
    import asyncio

    (tmp_path / "metrics").mkdir()
    source = MemorySource("m", {1: Scaled, 2: Scaled})
    first, second = core_of(source, shared=tmp_path), core_of(source, shared=tmp_path)
    asyncio.run(first.roll_back("m"))
    second.poll()
    assert (first.manager.serving("m"), second.manager.serving("m")) == (1, 1)
    asyncio.run(second.follow_newest("m"))
    first.poll()
    assert (first.manager.serving("m"), second.manager.serving("m")) == (2, 2)
