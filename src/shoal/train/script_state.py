"""Counters and results that a script keeps itself: `state = run.state(iter_num=0, best=1e9)`.

    while state.iter_num < 1000:
        …  loss.backward()  optimizer.step()
        state.iter_num += 1

Its attributes are in every checkpoint, and whoever comes later (a replaced worker, `--resume`) begins with them. Where
no loader is joined, assigning a whole number to one also says that an iteration is over: a worker that is started again
enters the loop there. All workers must do so in the same iterations.
"""

from collections.abc import Mapping
from typing import Any

from shoal.core.errors import UsageError
from shoal.train.state import misfit


class ScriptState:
    """Attributes with the names and first values that `run.state` was given."""

    _values: dict[str, Any]
    changes: int
    """How often a whole number was assigned: that is how a loop counts. A best loss may be one worker's affair."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        # past __setattr__ below, which takes only names that the script has given
        object.__setattr__(self, "_values", {})
        object.__setattr__(self, "changes", 0)
        for name, value in values.items():
            if name.startswith("_") or hasattr(type(self), name) or name == "changes":
                raise UsageError(f"state({name}=…): this name is taken; use another one")
            self._put(name, value)

    def _put(self, name: str, value: object) -> None:
        if found := misfit(value, name):
            raise UsageError(
                f"state({name}=…): {found}; a state holds numbers, strings, tensors, None, and lists and dicts of those"
            )
        self._values[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "_values")[name]
        except KeyError:
            raise AttributeError(f"the state has no {name!r}; it has {', '.join(self._values)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._values:
            raise AttributeError(f"the state has no {name!r}; give it a first value in run.state({name}=…)")
        self._put(name, value)
        if type(value) is int:
            object.__setattr__(self, "changes", self.changes + 1)

    def __repr__(self) -> str:
        return f"state({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def state_dict(self) -> dict[str, Any]:
        return dict(self._values)

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Take over what is known under the same names; the script may have others by now."""
        self._values.update({name: value for name, value in values.items() if name in self._values})
