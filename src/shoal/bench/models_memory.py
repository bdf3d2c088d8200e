"""The memory a model needs to answer: its parameters, and the most that is alive at once besides them.

A dispatch mode sees every tensor that an operation hands out, counts its storage once (views share one) and takes it
off when the storage is freed. So the number is exact and the same on every machine; scratch space that a kernel uses
inside one operation is not in it.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """While active, `now` and `peak` are the bytes of the storages made since the beginning."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: int = 0
        self.peak: int = 0
        # Held, not only remembered by address: an address may be given again.
        self._known = [tensor.untyped_storage() for tensor in known]
        self._alive = {id(storage) for storage in self._known}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        if id(storage) in self._alive:
            return
        self._alive.add(id(storage))
        # Not at exit, when the counts are not read any more.
        weakref.finalize(storage, self._free, id(storage), storage.nbytes()).atexit = False
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _free(self, key: int, size: int) -> None:
        # With the storage, because its id may be given to another one.
        self._alive.discard(key)
        self.now -= size


def inference_bytes(model: nn.Module, inputs: Sequence[Tensor]) -> int:
    """Parameters, buffers, the inputs, and the peak of what `model(*inputs)` makes."""
    # Each once: tied parameters are one tensor.
    held = {id(t): t for t in (*model.parameters(), *model.buffers(), *inputs)}.values()
    live = LiveBytes(held)
    with torch.no_grad(), live:
        model(*inputs)
    return live.peak + sum(tensor.numel() * tensor.element_size() for tensor in held)
