"""Checks the state that a remote worker hands to the run's own before anything is made of it.

It may hold wrong numbers, as its gradients may. What it may not do is make others take memory, or leave them with
tensors that the next step trips over: everything has the form that this worker's own state has.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.train.state import DTYPES, NUMBER, PAIRS, TENSOR, flatten

MOST_PER_PARAMETER = 8
"""Tensors that an optimizer keeps for a parameter, where this worker has none yet; Adam keeps three."""
_GROWS = "state"
"""What an optimizer calls the part of its state that is empty before its first step."""


def check_states(said: bytes, owners: Sequence[Any], parameters: Sequence[Tensor]) -> None:
    """Raise PayloadError for a text of `adopt_state` that does not fit `owners`; an empty one says nothing."""
    if not said:
        return
    theirs = msgspec.json.decode(said)
    if not isinstance(theirs, list) or len(theirs) != len(owners):
        raise PayloadError(f"states of other things than the {len(owners)} that are joined")
    check = _StateCheck(parameters)
    for owner, state in zip(owners, theirs, strict=True):
        check.compare(state, flatten(owner.state_dict(), []), type(owner).__name__)


class _StateCheck:
    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._shapes = {tuple(parameter.shape) for parameter in parameters} | {(), (1,)}
        self._new = MOST_PER_PARAMETER * (len(parameters) + 1)

    def compare(self, theirs: Any, own: Any, path: str, grows: bool = False) -> None:
        """`grows`: entries may stand there that this worker does not have."""
        if isinstance(own, dict) and PAIRS in own:
            self._compare_pairs(theirs, own, path, grows)
        elif isinstance(own, dict) and TENSOR in own:
            _require(theirs == own, path, "is a tensor of another shape or dtype")
        elif isinstance(own, dict | list) and not _is_number(own):
            self._compare_items(theirs, own, path)
        elif _is_number(own):
            _require(_is_number(theirs), path, "is no number")
        else:
            _require(theirs == own or (isinstance(own, bool) and isinstance(theirs, bool)), path, "is something else")

    def _compare_pairs(self, theirs: Any, own: Any, path: str, grows: bool) -> None:
        mine = dict(own[PAIRS])
        pairs: Any = theirs.get(PAIRS) if isinstance(theirs, dict) else None
        _require(isinstance(pairs, list), path, "is no dictionary")
        there = {}
        for pair in pairs:
            _require(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int | str), path, "has no keys")
            there[pair[0]] = pair[1]
        _require(mine.keys() <= there.keys() and len(there) == len(pairs), path, "lacks an entry, or has one twice")
        for key, item in there.items():
            if key in mine:
                self.compare(item, mine[key], f"{path}[{key!r}]", grows or key == _GROWS)
            else:
                _require(grows, path, f"has an entry {key!r:.40}")
                self._check_new(item, f"{path}[{key!r:.40}]")

    def _compare_items(self, theirs: Any, own: Any, path: str) -> None:
        """Lists, and tuples and what is lost, which are a dictionary of one."""
        if isinstance(own, dict):
            ((kind, items),) = own.items()
            _require(isinstance(theirs, dict) and list(theirs) == [kind], path, "is of another kind")
            theirs, own = theirs[kind], items
        if not isinstance(own, list):
            _require(theirs == own, path, "is something else")
            return
        _require(isinstance(theirs, list) and len(theirs) == len(own), path, "is of another length")
        for number, (their, mine) in enumerate(zip(theirs, own, strict=True)):
            self.compare(their, mine, f"{path}[{number}]")

    def _check_new(self, theirs: Any, path: str) -> None:
        """What an optimizer of the giver has and this one's has not yet: tensors like the parameters, and numbers."""
        self._new -= 1
        _require(self._new >= 0, path, "is one entry too many")
        if isinstance(theirs, dict) and list(theirs) == [PAIRS]:
            _require(isinstance(theirs[PAIRS], list), path, "is no dictionary")
            for pair in theirs[PAIRS]:
                _require(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str), path, "has no keys")
                self._check_new(pair[1], f"{path}[{pair[0]!r:.40}]")
        elif isinstance(theirs, dict) and list(theirs) == [TENSOR]:
            _require(self._is_like_a_parameter(theirs[TENSOR]), path, "is a tensor of a shape that no parameter has")
        else:
            _require(theirs is None or isinstance(theirs, bool) or _is_number(theirs), path, "is no number")

    def _is_like_a_parameter(self, told: Any) -> bool:
        if not isinstance(told, list) or len(told) != 2 or not isinstance(told[1], list):
            return False
        dtype, shape = told
        whole = all(type(size) is int for size in shape)
        return whole and tuple(shape) in self._shapes and isinstance(dtype, str) and dtype in DTYPES


def _is_number(value: Any) -> bool:
    if isinstance(value, dict):
        return list(value) == [NUMBER] and value[NUMBER] in ("inf", "-inf", "nan")
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(fits: bool, path: str, what: str) -> None:
    if not fits:
        raise PayloadError(f"the state it hands over does not fit: {path[:120]} {what}")
