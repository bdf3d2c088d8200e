"""The model registry: versions of trained models with their lineage, and the blobs that hold them.

    registry = Registry()                          $SHOAL_MODELS, else ./models; or Registry("/path")
    version = registry.add("digits", model.state_dict(), metrics={"accuracy": 0.98})
    registry.get("digits")                         the newest version; "digits:3" a number, "digits@prod" an alias
    registry.list()                                all versions, newest first; list("digits") of one name
    registry.tag("digits:3", "prod")               set an alias; untag() removes it
    registry.tensors(version)                      its weights, every byte checked; registry.file(version, "model.onnx")
    registry.lineage(version)                      the versions it was trained from, newest first
    registry.blobs                                 content-addressed storage
    for version in registry.follow("digits@prod"): …   the version it points to, now and after every change
    with registry.hold(version): …                 nothing removes it meanwhile
    shoal.models.load("digits@prod", module)       weights into your own module

Names are looked up when first used, so that listing versions does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.models.errors import RegistryError
    from shoal.models.loading import load
    from shoal.models.registry import Registry
    from shoal.models.version import Lineage, ModelVersion

__all__ = ["Lineage", "ModelVersion", "Registry", "RegistryError", "load"]

_HOMES = {
    "Lineage": "shoal.models.version",
    "ModelVersion": "shoal.models.version",
    "Registry": "shoal.models.registry",
    "RegistryError": "shoal.models.errors",
    "load": "shoal.models.loading",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'shoal.models' has no attribute {name!r}")
