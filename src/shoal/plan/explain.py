"""Explain what a plan does, costs and cites, axis by axis, in the words of the terms' own docstrings."""

import inspect
import textwrap

import msgspec

from shoal.core.errors import UsageError
from shoal.groups.cluster_file import ClusterMeasurement
from shoal.plan.plan import Plan
from shoal.plan.presets import PRESETS, NamedPlan
from shoal.plan.terms import AXES, Axis, NamedTerm
from shoal.plan.traffic import PARAMETERS, StepTraffic, over, traffic

WIDTH = 100


class TermDocs(msgspec.Struct, frozen=True, kw_only=True):
    """What a term's docstring says; a part that is not there is empty."""

    does: str
    costs: str = ""
    cites: str = ""
    avoid: str = ""


class AxisExplanation(TermDocs, frozen=True, kw_only=True):
    """One axis of a plan, explained."""

    axis: Axis
    question: str
    term: str
    """The term's text; empty where the axis holds none."""


class PlanExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A plan explained: the object `shoal plan explain --json` prints; `str` gives it for people."""

    plan: str
    names: list[str]
    """Named plans that are this plan."""
    parts: list[AxisExplanation]
    traffic: StepTraffic | None = None
    """How payloads meet and what a worker sends, where the number of workers was given."""

    def __str__(self) -> str:
        named = [f"known as {name}: {PRESETS[name].cites}" for name in self.names]
        sent = ["\n" + "\n".join(textwrap.wrap(str(self.traffic), WIDTH))] if self.traffic is not None else []
        return "\n".join([f"plan: {self.plan}", *named, *("\n" + _write(part) for part in self.parts), *sent])


def explain(
    plan: Plan, workers: int | None = None, parameters: int = PARAMETERS, cluster: ClusterMeasurement | None = None
) -> PlanExplanation:
    """Explain every term of `plan` in the order it is written, and an empty wire too.

    With `cluster`, also say how long the workers that were measured wait for what travels.
    """
    if cluster is not None:
        if workers not in (None, len(cluster.workers)):
            raise UsageError(f"--workers {workers}: the cluster has {len(cluster.workers)}; leave --workers out")
        workers = len(cluster.workers)
    parts: list[AxisExplanation] = []
    for axis, question in AXES.items():
        here = [term for term in plan.terms if term.axis == axis]
        parts += [_part(axis, question, str(term), about(type(term))) for term in here]
        if not here:
            parts.append(_part(axis, question, "", TermDocs(does="No codec: values travel as they are.")))
    names = [name for name, preset in PRESETS.items() if _means(preset, plan)]
    sent = traffic(plan, workers, parameters) if workers is not None else None
    if cluster is not None and sent is not None:
        sent = over(cluster, sent)
    return PlanExplanation(plan=str(plan), names=names, parts=parts, traffic=sent)


def about(kind: type[NamedTerm]) -> TermDocs:
    """Split the docstring of a term at its labels `Costs:`, `Cites:` and `Avoid:`."""
    found = {"does": ""}
    label = "does"
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        head, colon, rest = line.partition(":")
        if colon and head in ("Costs", "Cites", "Avoid"):
            label, line = head.lower(), rest
        found[label] = f"{found.get(label, '')} {line.strip()}".strip()
    return msgspec.convert(found, TermDocs)


def _part(axis: Axis, question: str, term: str, about: TermDocs) -> AxisExplanation:
    return AxisExplanation(axis=axis, question=question, term=term, **msgspec.structs.asdict(about))


def _means(preset: NamedPlan, plan: Plan) -> bool:
    return Plan.parse(preset.text) == plan


def _write(part: AxisExplanation) -> str:
    lines = [f"{part.axis}, {part.question}: {part.term or 'no term'}"]
    for label in ("does", "costs", "cites", "avoid"):
        if words := getattr(part, label):
            lines += textwrap.wrap(words, WIDTH, initial_indent=f"  {label:<7}", subsequent_indent=" " * 9)
    return "\n".join(lines)
