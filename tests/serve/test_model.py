"""Several servables as one endpoint."""

import asyncio

import pytest
from served import MemorySource, Scaled, asked, core_of, x

from shoal.core.errors import UsageError
from shoal.serve.errors import RequestError
from shoal.serve.model import CompositeModel
from shoal.serve.servable import LookupTable


def composed(text: str):  # type: ignore[no-untyped-def]
    table = MemorySource("table", {1: lambda: LookupTable({"a": [1.0, 2.0]})})
    scaled = MemorySource("scaled", {1: lambda: Scaled(3.0)})
    other = MemorySource("other", {1: lambda: Scaled(5.0)})
    return core_of(table, scaled, other, composites=[CompositeModel.parse(text)])


def test_a_model_of_two_servables_answers_as_one_endpoint() -> None:
    async def ask(client):  # type: ignore[no-untyped-def]
        said = await client.post("/predict/whole", content='["a"]')
        told = await client.get("/v2/models/whole")
        return said.json(), told.json()

    said, told = asked(composed("whole=table>scaled"), ask)
    assert said == {"model": "whole", "version": 1, "outputs": [[3.0, 6.0]]}
    assert [each["name"] for each in told["inputs"] + told["outputs"]] == ["key", "y"]


def test_the_mean_of_two() -> None:
    async def main() -> list[list[float]]:
        core = composed("both=scaled+other")
        found = await core.infer("both", x([1.0, 2.0]))
        await core.close()
        return found.outputs["y"].tolist()

    assert asyncio.run(main()) == [[4.0, 8.0]]


def test_a_part_is_swapped_by_itself() -> None:
    async def main() -> list[float]:
        source = MemorySource("b", {1: lambda: Scaled(1.0)})
        parts = MemorySource("a", {1: lambda: Scaled(2.0)}), source
        core = core_of(*parts, composites=[CompositeModel.parse("c=a>b")])
        first = await core.infer("c", x([1.0, 1.0]))
        source.add(2, lambda: Scaled(10.0))
        await core.poll_once()
        second = await core.infer("c", x([1.0, 1.0]))
        await core.close()
        return [float(each.outputs["y"][0, 0]) for each in (first, second)]

    assert asyncio.run(main()) == [2.0, 20.0]


def test_an_error_of_a_part_is_the_models() -> None:
    async def main() -> None:
        core = composed("whole=table>scaled")
        with pytest.raises(RequestError, match="the model has no input 'x'"):
            await core.infer("whole", x([1.0, 1.0]))
        assert core.metrics_of("whole", 1).statuses == {400: 1}
        await core.close()

    asyncio.run(main())


@pytest.mark.parametrize("text", ["whole", "whole=a", "whole=a>b+c", "=a>b"])
def test_what_names_no_parts_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        CompositeModel.parse(text)


def test_a_part_that_is_not_served_is_named() -> None:
    with pytest.raises(UsageError, match="add nobody=MODEL"):
        composed("whole=table>nobody")
