"""A model of the table with trained weights: what `make zoo` trained and registered as NAME@zoo."""

import os

from torch import nn

import shoal.models

ALIAS = "zoo"


def pretrained(name: str, registry: str | os.PathLike[str] | None = None) -> nn.Module:
    """`name` at its default width, in evaluation mode; every byte of its weights is checked against its SHA-256.

    Without `registry`: $SHOAL_MODELS, else ./models. Weights that are damaged or missing raise an error.
    """
    from . import TABLE  # this file is part of the package that it looks into

    if name not in TABLE:
        raise KeyError(f"no model {name!r} in the table; there are {', '.join(TABLE)}")
    return shoal.models.load(f"{name}@{ALIAS}", TABLE[name].make(), registry).eval()
