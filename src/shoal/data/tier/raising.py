"""What the script sees of a batch that could not be prepared, here or on a server: the dataset's own exception."""

import builtins
from typing import Any

import torch
from torch import Tensor

from shoal.core.errors import ShoalError, UsageError
from shoal.data.tier.messages import BatchAnswer
from shoal.data.tier.preparing import BatchPreparer, SampleError
from shoal.data.turn import PassKey

# loops and generators take these for their end, and not for an error
_LEAVE_LOOPS = (StopIteration, StopAsyncIteration, GeneratorExit)


def raise_answer(answer: BatchAnswer, server: str) -> None:
    """Raise what the answer of `server` reports; nothing if it is a batch.

    A script may wait for a built-in exception of its dataset, so the type is kept where it is one; classes of other
    modules are not imported because a message names them.
    """
    if answer.outcome == "refused":
        raise UsageError(f"{server}: {answer.text}")
    if answer.outcome != "raised":
        return
    where = f"{server}, sample {answer.sample}" if answer.sample else f"{server}, collate_fn"
    kind = getattr(builtins, answer.error, None)
    is_known = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _LEAVE_LOOPS)
    error: Exception
    try:
        error = (
            kind(f"{where}: {answer.text}")
            if is_known and kind is not None
            else RuntimeError(f"{where}: {answer.error}: {answer.text}")
        )
    except TypeError:  # as UnicodeDecodeError, which wants five arguments
        error = RuntimeError(f"{where}: {answer.error}: {answer.text}")
    error.add_note(f"raised in {server}:\n{answer.trace}")
    raise error


def prepare_here(preparer: BatchPreparer, key: PassKey, indices: Any) -> Any:
    """Return the batch, prepared in this process; the dataset's exception comes as without servers."""
    try:
        return preparer.prepare(key, indices)
    except SampleError as error:
        cause = error.__cause__
        if not isinstance(cause, Exception):
            raise ShoalError(f"sample {error.sample} could not be prepared") from error
        cause.add_note(f"while this worker prepared sample {error.sample}" if error.sample else "in collate_fn")
        raise cause from None


def is_equal(one: Any, other: Any) -> bool:
    """Whether two batches hold the same bits in the same places."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        if one.dtype is not other.dtype or one.shape != other.shape:
            return False
        # as bytes, because NaN differs from itself
        own, their = (each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
        return torch.equal(own, their)
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_equal, one, other))
    # numbers that both differ from themselves are both NaN
    return bool(one == other) or (one != one and other != other)
