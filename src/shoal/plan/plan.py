"""The plan: one frozen value with a term for each axis, written as text in any order and read back the same.

`Plan.parse(str(plan)) == plan` always holds, so the text stands for the plan in records and tables.
"""

from collections.abc import Iterable

import msgspec

from shoal.core.errors import UsageError
from shoal.plan.balance import EVEN, BalanceTerm
from shoal.plan.bind import bind
from shoal.plan.presets import PRESETS
from shoal.plan.terms import (
    AXES,
    TERMS,
    AllReduceTerm,
    Axis,
    CodecTerm,
    EveryTerm,
    Exchange,
    OrderTerm,
    Pace,
    PlanTerm,
    ReplicateTerm,
    Split,
)
from shoal.plan.text import TermCall, parse


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas of a run do together; plain data, from which the machinery is built elsewhere."""

    exchange: Exchange = AllReduceTerm()
    """How replicas agree."""
    pace: Pace = EveryTerm()
    """When they agree."""
    wire: tuple[CodecTerm, ...] = ()
    """What travels: codecs in the order they are applied, and what leaves first; none leaves values as they are."""
    split: Split = ReplicateTerm()
    """How the model is split."""
    balance: BalanceTerm = EVEN
    """How much of every batch each worker computes."""

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """The plan that `text` describes: terms in any order, or the name of a plan.

        >>> str(Plan.parse("every(steps=1),alone"))
        'alone, every(1)'
        """
        return assemble(bind(call) for call in _unfold(parse(text)))

    def __post_init__(self) -> None:
        _check("exchange", self.exchange)
        _check("pace", self.pace)
        for codec in self.wire:
            _check("wire", codec)
        _check("split", self.split)
        _check("balance", self.balance)

    @property
    def terms(self) -> tuple[PlanTerm, ...]:
        """All terms in the order a plan is written."""
        return (self.exchange, self.pace, *self.wire, self.split, self.balance)

    @property
    def codecs(self) -> tuple[CodecTerm, ...]:
        """The wire without its order: empty where values travel as they are."""
        return tuple(term for term in self.wire if not isinstance(term, OrderTerm))

    @property
    def order(self) -> OrderTerm:
        """What leaves first."""
        return next((term for term in self.wire if isinstance(term, OrderTerm)), OrderTerm())

    def __str__(self) -> str:
        return ", ".join(str(term) for term in self.terms if term not in (ReplicateTerm(), EVEN))


def assemble(terms: Iterable[PlanTerm]) -> Plan:
    """A plan of `terms`, each put on its own axis; axes without one keep their default."""
    chosen: dict[Axis, PlanTerm] = {}
    wire: list[PlanTerm] = []
    for term in terms:
        if term.axis == "wire":
            wire.append(term)
        elif term.axis in chosen:
            raise UsageError(f"'{chosen[term.axis]}' and '{term}' both say {AXES[term.axis]} ({term.axis}); keep one")
        else:
            chosen[term.axis] = term
    return Plan(**{**chosen, "wire": tuple(wire)})  # type: ignore[arg-type]  # checked by Plan itself


def _unfold(calls: list[TermCall]) -> list[TermCall]:
    """The terms behind a named plan; other calls as they are."""
    for call in calls:
        preset = PRESETS.get(call.name)
        chosen = len(calls) > 1 or call.plain or call.named
        if preset is None or (call.name in TERMS and chosen):  # `dgc` is both; with arguments or company it is the term
            continue
        if len(calls) > 1:
            raise UsageError(f"'{call.name}' is a named plan and stands alone; write its terms: {preset.text}")
        if call.plain or call.named:
            raise UsageError(f"'{call.name}' is a named plan and takes no arguments; write {call.name}")
        return parse(preset.text)
    return calls


def _check(axis: Axis, term: object) -> None:
    """Only words of the table, each on its axis: what is not in the table could not be read back."""
    if not isinstance(term, PlanTerm) or type(term) is not TERMS.get(getattr(term, "name", "")):
        raise UsageError(f"{axis}: {term!r} is not a term; terms are {', '.join(TERMS)}")
    if term.axis != axis:
        raise UsageError(f"{axis}: '{term}' says {AXES[term.axis]}; write it under {term.axis}")
