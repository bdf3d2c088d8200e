"""The server's addresses as an OpenAPI 3.1 document, at `/openapi.json`: for generated clients, and for tests by it.

Written by hand beside the routes of `app.py`, because requests are decoded by the bytes and not from a schema.
"""

from functools import cache
from typing import Any

from shoal.core.version import __version__
from shoal.serve.tensors import DATATYPES

Schema = dict[str, Any]
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_ANYTHING: Schema = {"type": "object"}
_REASONS = {
    400: "The request is malformed or does not fit the model.",
    401: "The token is missing or wrong.",
    404: "No such model or version.",
    413: "More than this server takes.",
    500: "The model raised an error.",
    503: "Too much to do; see Retry-After.",
    504: "The client's time was over.",
}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {"type": "object", "required": [*required], "properties": {**required, **(optional or {})}}


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _tensor(**more: Schema) -> Schema:
    known: dict[str, Schema] = {"name": _TEXT, "datatype": {"enum": [*DATATYPES]}, "shape": _list({"type": "integer"})}
    return _object(known, more)


def _infer_request() -> Schema:
    shape = _list(_COUNT, maxItems=16)
    tensor = _tensor(parameters=_ANYTHING, data={"type": "array"})
    tensor["properties"]["shape"] = shape
    wish = _object({"name": _TEXT}, {"parameters": _ANYTHING})
    optional = {"id": {"type": "string", "maxLength": 256}, "outputs": _list(wish), "parameters": _ANYTHING}
    return _object({"inputs": _list(tensor, minItems=1, maxItems=64)}, optional)


def _infer_answer() -> Schema:
    outputs = _list(_tensor(parameters=_ANYTHING, data={"type": "array"}))
    return _object({"model_name": _TEXT, "model_version": _TEXT, "outputs": outputs}, {"id": _TEXT})


def _responses(schema: Schema | None, *statuses: int, kind: str = "application/json") -> Schema:
    found: Schema = {"200": {"description": "The answer.", "content": {kind: {"schema": schema or _ANYTHING}}}}
    for status in (400, 401, *statuses):
        body = {"application/json": {"schema": _ERROR}}
        found[str(status)] = {"description": _REASONS[status], "content": body}
    return found


def _get(words: str, schema: Schema | None, *statuses: int, **more: Any) -> Schema:
    kind = more.pop("kind", "application/json")
    return {"get": {"summary": words, "responses": _responses(schema, *statuses, kind=kind), **more}}


def _post(words: str, body: Schema | None, schema: Schema, *statuses: int, **more: Any) -> Schema:
    found = {"summary": words, "responses": _responses(schema, *statuses), **more}
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"post": found}


_READY = _object({"name": _TEXT, "ready": {"type": "boolean"}})
_METADATA = _object(
    {
        "name": _TEXT,
        "versions": _list(_TEXT),
        "platform": _TEXT,
        "inputs": _list(_tensor()),
        "outputs": _list(_tensor()),
    }
)
_INDEX = _list(_object({"name": _TEXT, "version": _TEXT, "state": _TEXT, "reason": _TEXT}))
_STATISTICS = _object({"model_stats": _list(_object({"name": _TEXT, "version": _TEXT, "inference_count": _COUNT}))})
_PREDICTED = _object({"model": _TEXT, "version": _COUNT, "outputs": {}})
_VERSIONS = _object({"name": _TEXT, "versions": _list(_object({"version": _TEXT, "state": _TEXT}))})
_CHANGED = _object({"name": _TEXT, "version": _TEXT})
_ASKING = (404, 413, 500, 503, 504)


def _not_ready(operation: Schema) -> Schema:
    """503 has the same body as 200 here: not ready is an answer, not a failure."""
    responses = operation["get"]["responses"]
    responses["503"] = {"description": "Not ready.", "content": responses["200"]["content"]}
    return operation


def _model_paths() -> Schema:
    one, paths = "/v2/models/{name}", {}
    for place in (one, f"{one}/versions/{{version}}"):
        paths[place] = _get("Inputs and outputs.", _METADATA, 404)
        paths[f"{place}/ready"] = _not_ready(_get("Whether it can be asked.", _READY, 404))
        paths[f"{place}/stats"] = _get("Counts and times.", _STATISTICS, 404)
        paths[f"{place}/infer"] = _post("Ask the model.", _infer_request(), _infer_answer(), *_ASKING)
        paths[f"{place}/rollback"] = _post("Serve an earlier version.", None, _CHANGED, 404)
        paths[f"{place}/follow"] = _post("Serve the newest version again.", None, _CHANGED, 404)
    paths[f"{one}/versions"] = _get("Every version and its state.", _VERSIONS, 404)
    paths[f"{one}/traffic"] = _get("How requests are divided among versions.", None, 404)
    told = {"reward": {"type": "number", "minimum": 0, "maximum": 1}}
    feedback = _object(told, {"id": _TEXT, "version": _COUNT})
    paths[f"{one}/feedback"] = _post("How good an answer was.", feedback, _CHANGED, 404)
    for place, operations in paths.items():
        operations["parameters"] = [_path_parameter(each) for each in ("name", "version") if f"{{{each}}}" in place]
    return paths


def _path_parameter(name: str) -> Schema:
    kind = {"type": "string", "minLength": 1, "pattern": "^[0-9A-Za-z._-]+$"}
    return {"name": name, "in": "path", "required": True, "schema": kind}


@cache
def openapi_document() -> Schema:
    """The document; the same for every server."""
    server = _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)})
    predict = _post("Ask with plain lists.", {}, _PREDICTED, *_ASKING)
    named = {**predict, "parameters": [_path_parameter("name")]}
    example = {**_get("A request that fits.", None, 404), "parameters": [_path_parameter("name")]}
    ready = _object({"ready": {"type": "boolean"}})
    paths = {
        "/v2": _get("The server.", server),
        "/v2/health/live": _get("Whether it runs.", _object({"live": {"type": "boolean"}})),
        "/v2/health/ready": _not_ready(_get("Whether every model can be asked.", ready)),
        "/v2/models": _get("Every version of every model.", _object({"models": _INDEX})),
        "/v2/models/stats": _get("Counts and times of all.", _STATISTICS),
        "/v2/repository/index": _post("Every version of every model.", None, _INDEX),
        **_model_paths(),
        "/predict": predict,
        "/predict/{name}": named,
        "/example/{name}": example,
        "/metrics": _get("Prometheus text.", _TEXT, kind="text/plain"),
        "/openapi.json": _get("This document.", None),
    }
    about = {"title": "shoal serve", "version": __version__, "summary": "Open Inference Protocol, version 2"}
    bearer = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": {"securitySchemes": bearer}}
