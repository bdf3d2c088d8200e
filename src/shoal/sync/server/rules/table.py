"""The closed list of server rules, by name."""

import inspect

from shoal.core.errors import UsageError
from shoal.sync.server.rules.adagrad import AdagradRule
from shoal.sync.server.rules.adam import AdamRule
from shoal.sync.server.rules.add import AddRule
from shoal.sync.server.rules.base import ServerRule
from shoal.sync.server.rules.mean import MeanRule
from shoal.sync.server.rules.sgd import MomentumRule, NesterovRule, SgdRule

RULES: dict[str, type[ServerRule]] = {
    "mean": MeanRule,
    "add": AddRule,
    "sgd": SgdRule,
    "momentum": MomentumRule,
    "adagrad": AdagradRule,
    "adam": AdamRule,
    "nesterov": NesterovRule,
}


def make_rule(name: str, **settings: float) -> ServerRule:
    """Return the rule that a plan names, with its settings (`rate`, `momentum`, …)."""
    kind = RULES.get(name)
    if kind is None:
        raise UsageError(f"rule {name!r} is unknown to servers, which run no other code; write {', '.join(RULES)}")
    try:
        return kind(**settings)
    except TypeError:
        written = ", ".join(f"{key}={value}" for key, value in settings.items()) or "nothing"
        known = ", ".join(inspect.signature(kind).parameters) or "nothing"
        raise UsageError(f"rule {name} does not go with {written}; its settings are: {known}") from None
