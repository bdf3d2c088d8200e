"""What a core serves and has counted, as the protocol's answers tell it; HTTP and gRPC say the same."""

from typing import Any

from shoal.serve.core import ServingCore
from shoal.serve.errors import ModelMissing
from shoal.serve.metrics import statistics
from shoal.serve.protocol import metadata

EXTENSIONS = ["binary_tensor_data", "statistics", "schedule_policy"]
_STATES = {"available": "READY", "loading": "LOADING", "draining": "UNLOADING"}


def version_number(text: str) -> int | None:
    """A version's number; None for the one that is served at the moment."""
    if text == "latest":
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise ModelMissing(f"{text[:20]!r} is not a version number")
    return int(text)


def model_metadata(core: ServingCore, name: str, number: int | None) -> dict[str, Any]:
    """Inputs and outputs of a model; all its available versions, or the one that was asked for."""
    found, inputs, outputs = core.specs(name, number)
    available = [each.number for each in core.manager.versions(name) if each.state == "available"]
    numbers = [found] if number is not None else available or [found]
    told: dict[str, Any] = metadata(name, numbers, inputs, outputs)
    return told


def model_versions(core: ServingCore, name: str) -> list[dict[str, Any]]:
    """Every version of a model with its state."""
    if name in core.composites:
        return [{"version": "1", "state": "available", "parts": core.composites[name].parts}]
    if name not in core.models:
        raise ModelMissing(f"no model {name[:80]!r} here; there is {', '.join(core.names())}")
    serving = core.manager.serving(name)
    return [
        {
            "version": str(each.number),
            "state": each.state,
            "serving": each.number == serving and each.state == "available",
            "memory": each.memory,
            "error": each.error,
        }
        for each in core.manager.versions(name)
    ]


def repository_index(core: ServingCore) -> list[dict[str, Any]]:
    """Every version of every model in the words of the protocol's repository extension."""
    return [
        {
            "name": each.name,
            "version": str(each.number),
            "state": _STATES.get(each.state, "UNAVAILABLE"),
            "reason": each.error,
        }
        for each in core.manager.versions()
    ]


def model_statistics(core: ServingCore, name: str | None, number: int | None) -> list[dict[str, Any]]:
    """Counts and times of all versions, of a model's, or of one."""
    if name is not None and name not in core.names():
        raise ModelMissing(f"no model {name[:80]!r} here; there is {', '.join(core.names())}")
    found = sorted(core.total_metrics().items())
    return [statistics(*key, metrics) for key, metrics in found if name in (None, key[0]) and number in (None, key[1])]
