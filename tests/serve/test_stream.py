"""The order of versions, and going back in it."""

import asyncio

import pytest
from served import MemorySource, Scaled, core_of, x

from shoal.serve.errors import ModelMissing
from shoal.serve.stream import VersionStream


def test_new_numbers_come_in_order_and_the_newest_is_wanted() -> None:
    stream = VersionStream("m")
    assert stream.update([3, 1, 2]) == (1, 2, 3)
    assert stream.update([4, 1, 2, 3]) == (4,)
    assert (stream.numbers, stream.wanted()) == ((1, 2, 3, 4), (4,))


def test_several_newest_may_be_wanted() -> None:
    stream = VersionStream("m", keep=2)
    stream.update([1, 2, 3])
    assert stream.wanted() == (2, 3)
    stream.roll_back(2)
    assert stream.wanted() == (1, 2)


def test_a_roll_back_holds_though_newer_versions_appear() -> None:
    stream = VersionStream("m")
    stream.update([1, 2, 3])
    assert stream.roll_back() == 2
    assert stream.roll_back() == 1
    stream.update([1, 2, 3, 4])
    assert stream.wanted() == (1,)
    stream.follow_newest()
    assert stream.wanted() == (4,)


def test_a_roll_back_to_a_version_that_is_removed_ends() -> None:
    stream = VersionStream("m")
    stream.update([1, 2])
    stream.roll_back()
    stream.update([2])
    assert (stream.pinned, stream.wanted()) == (None, (2,))


def test_nothing_to_roll_back_to() -> None:
    stream = VersionStream("m")
    stream.update([5])
    with pytest.raises(ModelMissing, match="no version before 5"):
        stream.roll_back()
    with pytest.raises(ModelMissing, match="no version 4; it has 5"):
        stream.roll_back(4)


def test_versions_appear_in_order_and_rolling_back_works_on_a_server() -> None:
    async def main() -> list[tuple[int, float]]:
        source = MemorySource("m", {1: lambda: Scaled(1.0)})
        core = core_of(source)
        seen = []

        async def look() -> None:
            found = await core.infer("m", x([1.0, 1.0]))
            seen.append((found.number, float(found.outputs["y"][0, 0])))

        await look()
        for number in (2, 3):
            source.add(number, lambda number=number: Scaled(float(number)))
            await core.poll_once()
            await look()
        await core.roll_back("m")
        await look()
        await core.follow_newest("m")
        await look()
        await core.close()
        return seen

    assert asyncio.run(main()) == [(1, 1.0), (2, 2.0), (3, 3.0), (2, 2.0), (3, 3.0)]
