"""A fingerprint of the data a model was trained on: the same data, the same text.

    tensors:…   SHA-256 over a TensorDataset: every byte up to 64 MB, above that rows spread evenly
    samples:…   over the number of samples and sixteen of them, spread evenly
    size:…      only the number of samples: reading one twice gave different values, as augmentation does
    kind:…      only the type of the data set: it has no length

The cost is bounded, so that a run is not kept waiting. It tells data sets apart; it is no proof against forgery.
"""

import hashlib
from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from shoal.core import seeds

WHOLE = 64 << 20
"""Bytes of tensors that are read whole."""
SAMPLES = 16


def fingerprint_data(data: Any) -> str:
    """Of a data set, whatever it is; random numbers that its samples draw are given back."""
    if isinstance(data, TensorDataset):
        return f"tensors:{_tensors(data.tensors)}"
    kind = hashlib.sha256(type(data).__qualname__.encode()).hexdigest()
    if not isinstance(data, Sized) or not hasattr(data, "__getitem__") or not len(data):
        return f"kind:{kind}"
    # Samples may draw random numbers, and the training must not see that they were drawn.
    before = seeds.capture()
    try:
        # Twice, because augmentation gives other values each time and such a digest would identify nothing.
        first, again = _samples(data), _samples(data)
    except Exception:  # noqa: BLE001  (the user's data set; a fingerprint must not end a run)
        first, again = "", "unreadable"
    finally:
        seeds.restore(before)
    size = hashlib.sha256(f"{kind} {len(data)}".encode()).hexdigest()
    return f"samples:{first}" if first == again else f"size:{size}"


def _tensors(tensors: tuple[Tensor, ...]) -> str:
    digest = hashlib.sha256()
    whole = sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= WHOLE
    for tensor in tensors:
        rows = tensor if whole or not len(tensor) else tensor[_spread(len(tensor), 1024)]
        _update(digest, rows)
        digest.update(str(list(tensor.shape)).encode())
    return digest.hexdigest()


def _samples(data: Any) -> str:
    digest = hashlib.sha256(f"{type(data).__qualname__} {len(data)}".encode())
    for place in _spread(len(data), SAMPLES):
        _update(digest, data[place])
    return digest.hexdigest()


def _spread(length: int, count: int) -> list[int]:
    return sorted({length * number // count for number in range(count)})


def _update(digest: "hashlib._Hash", value: Any) -> None:
    """Tensors, arrays, numbers, texts, and containers of them; of anything else the type."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().view(-1)
        digest.update(f"{value.dtype} {list(value.shape)}".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    elif isinstance(value, np.ndarray):
        digest.update(f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, bytes | str | int | float | bool | None):
        digest.update(repr(value).encode())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _update(digest, key)
            _update(digest, item)
    elif isinstance(value, list | tuple):
        for item in value:
            _update(digest, item)
    elif hasattr(value, "tobytes"):  # a picture of PIL
        digest.update(value.tobytes())
    else:
        digest.update(type(value).__qualname__.encode())
