"""A command whose options are the fields of frozen dataclasses.

    @with_option_groups
    def run(training: TrainingOptions, losses: LossOptions, script: … = None) -> None: ...

typer sees one parameter for each field, with the field's annotation and default; the command gets the values in groups.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as typer reads it."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    parameters = [each for name, hint in hints.items() if name != "return" for each in _parameters(command, name, hint)]
    # typer shows these as the command's name and help.
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    # typer reads both: the defaults from the signature, the types from the annotations.
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _parameters(command: Callable[..., None], name: str, hint: Any) -> list[Parameter]:
    if not is_dataclass(hint):
        default = inspect.signature(command).parameters[name].default
        return [Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)]
    types = get_type_hints(hint, include_extras=True)
    return [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=types[each.name])
        for each in fields(hint)
    ]
