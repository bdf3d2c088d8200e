"""The plan: one frozen value with a term for each axis, written as text in any order and read back the same.

`Plan.parse(str(plan)) == plan` always holds, so the text stands for the plan in records and tables. A plan may have a
plan for each part of the model (parts.py); its own terms then say what holds for the whole model.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from shoal.core.errors import UsageError
from shoal.plan.balance import EVEN, BalanceTerm
from shoal.plan.bind import bind
from shoal.plan.factors import FactorsTerm
from shoal.plan.parts import PartText, check_patterns, split_parts
from shoal.plan.presets import PRESETS
from shoal.plan.registry import all_names, find_term
from shoal.plan.terms import (
    AXES,
    AllReduceTerm,
    Axis,
    EveryTerm,
    Exchange,
    NamedTerm,
    OrderTerm,
    Pace,
    ReplicateTerm,
    ServerTerm,
    Split,
)
from shoal.plan.text import MAX_CHARACTERS, TermCall, parse
from shoal.plan.wrappers import GuardTerm, MeetTerm, WireTerm

if TYPE_CHECKING:
    from shoal.sync.settings import SynchronizerSettings

    AnyPace = Pace | SynchronizerSettings
else:
    AnyPace = Pace  # what JSON is decoded to: terms of other packages are read from a plan's text only


class PlanPart(msgspec.Struct, frozen=True):
    """The plan of the parameters whose names match a pattern, and no pattern before it."""

    pattern: str
    plan: "Plan"

    def __str__(self) -> str:
        return f"{self.pattern}: {self.plan}"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas of a run do together: plain data, from which `train/build.py` makes the machinery."""

    exchange: Exchange = AllReduceTerm()
    """How replicas agree."""
    pace: AnyPace = EveryTerm()
    """When they agree."""
    wire: tuple[NamedTerm, ...] = ()
    """What travels: codecs in the order they are applied, and what leaves first; none leaves values as they are."""
    split: Split = ReplicateTerm()
    """How the model is split."""
    balance: BalanceTerm = EVEN
    """How much of every batch each worker computes."""
    parts: tuple[PlanPart, ...] = ()
    """A plan for each part of the model, in the order patterns are tried; exchange, pace and wire are then theirs."""

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """Return the plan that `text` describes: terms in any order, or the name of a plan.

        >>> str(Plan.parse("every(steps=1),alone"))
        'alone, every(1)'
        >>> str(Plan.parse("embeddings.*: topk(0.01); *: fp16"))
        'embeddings.*: allreduce, every(1), topk(0.01); *: allreduce, every(1), fp16'
        """
        sections = split_parts(text)
        return _parse_terms(text) if sections is None else _parse_parts(sections)

    def __post_init__(self) -> None:
        # Also for a plan that is decoded from JSON or put together in Python.
        _check("exchange", self.exchange)
        _check("pace", self.pace)
        for codec in self.wire:
            _check("wire", codec)
        _check("split", self.split)
        _check("balance", self.balance)
        if self.parts:
            self._check_parts()

    def _check_parts(self) -> None:
        check_patterns([part.pattern for part in self.parts])
        # Left at their defaults they were not written: a plan is the same value however it was spelt.
        if (self.exchange, self.pace, self.wire) != (AllReduceTerm(), EveryTerm(), ()):
            raise UsageError(f"'{self._own_text()}' stands before the parts, which all have a plan; write it in theirs")
        for part in self.parts:
            if part.plan.parts:
                raise UsageError(f"part {part.pattern!r} has parts of its own; write one list of patterns")
            # One batch and one split for the whole model, because every part sees the same samples.
            for term in (part.plan.split, part.plan.balance):
                if term not in (ReplicateTerm(), EVEN):
                    raise UsageError(f"'{term}' in part {part.pattern!r} is of the whole model; begin with '{term};'")
        # Written out with all defaults it may be longer than what was given, and records must be able to read it back.
        if len(str(self)) > MAX_CHARACTERS:
            raise UsageError(f"the plan has {len(str(self))} characters with all its terms; at most {MAX_CHARACTERS}")

    @property
    def plans(self) -> tuple["Plan", ...]:
        """The plan of each part; of a model without parts, the plan itself."""
        return tuple(part.plan for part in self.parts) or (self,)

    @property
    def patterns(self) -> tuple[str, ...]:
        """What the names of a part's parameters match; empty for a model without parts."""
        return tuple(part.pattern for part in self.parts)

    @property
    def servers(self) -> ServerTerm | None:
        """The servers that a run of this plan has, of the whole model or of a part; None if it has none."""
        return next((each.exchange for each in self.plans if isinstance(each.exchange, ServerTerm)), None)

    @property
    def terms(self) -> tuple[NamedTerm, ...]:
        """All terms in the order a plan is written."""
        if self.parts:
            return (*(term for plan in self.plans for term in plan.terms), self.split, self.balance)
        return (self.exchange, self.pace, *self.wire, self.split, self.balance)

    @property
    def codecs(self) -> tuple[NamedTerm, ...]:
        """The wire without its order: empty where values travel as they are."""
        return tuple(term for term in self.wire if not isinstance(term, OrderTerm))

    @property
    def order(self) -> OrderTerm:
        """What leaves first; rules.py sees that parts agree."""
        if self.parts:
            return self.parts[0].plan.order
        return next((term for term in self.wire if isinstance(term, OrderTerm)), OrderTerm())

    @property
    def chooses_codec(self) -> bool:
        """Whether the run chooses what gradients travel as: `wire(auto)`."""
        return any(isinstance(term, WireTerm) for term in self.wire)

    @property
    def meeting(self) -> Literal["auto", "gather", "twostage"]:
        """How payloads of all workers come together."""
        return next((term.how for term in self.wire if isinstance(term, MeetTerm)), "auto")

    @property
    def factors(self) -> FactorsTerm | None:
        """Which gradients travel as factors; None if none does."""
        return next((term for term in self.wire if isinstance(term, FactorsTerm)), None)

    @property
    def guard(self) -> GuardTerm | None:
        """What is compared with the true gradient, and how often; None without a guard."""
        return next((term for term in self.wire if isinstance(term, GuardTerm)), None)

    def __str__(self) -> str:
        if self.parts:
            kept = [str(term) for term in (self.split, self.balance) if term not in (ReplicateTerm(), EVEN)]
            return "; ".join([*([", ".join(kept)] if kept else []), *map(str, self.parts)])
        return self._own_text()

    def _own_text(self) -> str:
        terms = (self.exchange, self.pace, *self.wire, self.split, self.balance)
        return ", ".join(str(term) for term in terms if term not in (ReplicateTerm(), EVEN))


def _parse_terms(text: str) -> Plan:
    return assemble(bind(call) for call in _unfold(parse(text)))


def _parse_parts(sections: list[PartText]) -> Plan:
    # Together, because `parse` bounds each section alone.
    if sum(len(section.terms) for section in sections) > MAX_CHARACTERS:
        raise UsageError(f"the plan has more than {MAX_CHARACTERS} characters, and more are not read; shorten it")
    common = _parse_terms(sections[0].terms) if not sections[0].pattern else Plan()
    parts = tuple(PlanPart(pattern, _in_part(pattern, terms)) for pattern, terms in sections if pattern)
    return msgspec.structs.replace(common, parts=parts)


def _in_part(pattern: str, terms: str) -> Plan:
    try:
        return _parse_terms(terms)
    except UsageError as error:
        raise UsageError(f"part {pattern!r}: {error}") from None


def assemble(terms: Iterable[NamedTerm]) -> Plan:
    """Return a plan of `terms`, each on its own axis; axes without one keep their default."""
    chosen: dict[Axis, NamedTerm] = {}
    wire: list[NamedTerm] = []
    for term in terms:
        if term.axis == "wire":
            wire.append(term)
        elif term.axis in chosen:
            raise UsageError(f"'{chosen[term.axis]}' and '{term}' both say {AXES[term.axis]} ({term.axis}); keep one")
        else:
            chosen[term.axis] = term
    return Plan(**{**chosen, "wire": tuple(wire)})  # type: ignore[arg-type]  # checked by Plan itself


def _unfold(calls: list[TermCall]) -> list[TermCall]:
    """Replace a named plan by its terms; return other calls as they are."""
    for call in calls:
        preset = PRESETS.get(call.name)
        chosen = len(calls) > 1 or call.plain or call.named
        if preset is None or (
            chosen and find_term(call.name) is not None
        ):  # `dgc` is both: with arguments or beside others it is the term
            continue
        if len(calls) > 1:
            raise UsageError(f"'{call.name}' is a named plan and stands alone; write its terms: {preset.text}")
        if call.plain or call.named:
            raise UsageError(f"'{call.name}' is a named plan and takes no arguments; write {call.name}")
        return parse(preset.text)
    return calls


def _check(axis: Axis, term: object) -> None:
    """Raise UsageError unless the term is known and stands on its axis: another one could not be read back."""
    if not isinstance(term, NamedTerm) or type(term) is not find_term(getattr(term, "name", "")):
        raise UsageError(f"{axis}: {term!r} is not a term; terms are {', '.join(all_names())}")
    if term.axis != axis:
        raise UsageError(f"{axis}: '{term}' says {AXES[term.axis]}; write it under {term.axis}")
