"""The document at /openapi.json: requests made from it get the answers that it promises, and no path is missing."""

import inspect
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from served import MemorySource, Scaled, core_of, listening

from shoal.serve.app import ServeApp
from shoal.serve.openapi import openapi_document

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.checks import load_all_checks, not_a_server_error  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402

load_all_checks()
CHECKS = (
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
)
SCHEMA = schemathesis.openapi.from_dict(openapi_document())


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with listening(core_of(MemorySource("m", {1: lambda: Scaled(2.0)}))) as found:
        yield f"http://{found}"


@SCHEMA.parametrize()
@settings(
    max_examples=10, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_requests_made_from_the_document_get_answers_that_it_promises(case, address: str) -> None:  # type: ignore[no-untyped-def]
    if "name" in case.path_parameters:
        case.path_parameters["name"] = "m"
    if "version" in case.path_parameters:
        case.path_parameters["version"] = "1"
    case.call_and_validate(base_url=address, checks=CHECKS)


def test_it_is_served_and_has_every_route_of_the_app(address: str) -> None:
    assert httpx.get(f"{address}/openapi.json").json() == openapi_document()
    routes = inspect.getsource(ServeApp)
    words = {word for path in openapi_document()["paths"] for word in path.split("/") if word and "{" not in word}
    assert all(f'"{word}"' in routes for word in words)
