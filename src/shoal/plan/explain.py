"""Explain what a plan does, costs and cites, axis by axis, in the words of the terms' own docstrings."""

import inspect
import textwrap

import msgspec

from shoal.core.errors import UsageError
from shoal.groups.cluster_file import ClusterMeasurement
from shoal.plan.factors import LayerChoice, choose_layers
from shoal.plan.part_rules import check_parts
from shoal.plan.part_table import PartTraffic, Shapes, part_table, write_table
from shoal.plan.parts import match_parts
from shoal.plan.plan import Plan
from shoal.plan.presets import PRESETS, NamedPlan
from shoal.plan.terms import AXES, Axis, NamedTerm, ServerTerm
from shoal.plan.traffic import PARAMETERS, StepTraffic, over, shape_traffic, traffic

WIDTH = 100
MATRICES = "matrices, if they are weights of linear layers alone:"


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
    patterns: tuple[str, ...] = ()
    """The parts of the model whose plans hold it, where parts have plans of their own."""


class PlanExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """A plan explained: the object `shoal plan explain --json` prints; `str` gives it for people."""

    plan: str
    names: list[str]
    """Named plans that are this plan."""
    parts: list[AxisExplanation]
    traffic: StepTraffic | None = None
    """How payloads meet and what a worker sends, where the number of workers was given."""
    table: list[PartTraffic] = []
    """The same of each part of the model, where the model was given."""
    layers: list[LayerChoice] = []
    """How each matrix travels under `factors`, where the model was given."""

    def __str__(self) -> str:
        named = [f"known as {name}: {PRESETS[name].cites}" for name in self.names]
        sent = ["\n" + "\n".join(textwrap.wrap(str(self.traffic), WIDTH))] if self.traffic is not None else []
        table = ["\n" + write_table(self.table)] if self.table else []
        table += ["\n" + "\n".join([MATRICES, *map(str, self.layers)])] if self.layers else []
        return "\n".join([f"plan: {self.plan}", *named, *("\n" + _write(part) for part in self.parts), *table, *sent])


def explain(
    plan: Plan,
    workers: int | None = None,
    parameters: int = PARAMETERS,
    cluster: ClusterMeasurement | None = None,
    shapes: Shapes | None = None,
    computing: float | None = None,
) -> PlanExplanation:
    """Explain every term of `plan` in the order it is written, and an empty wire too.

    With `cluster`, also say how long the workers that were measured wait for what travels. `shapes`: those of the
    model's parameters, for bytes a step of each part. `computing`: seconds of a batch, for the time of a whole step.
    """
    if computing is not None and cluster is None:
        raise UsageError("--computing: how long a step takes depends on the network too: --cluster cluster.toml")
    if cluster is not None:
        workers = _measured_workers(plan, workers, len(cluster.workers))
    check_parts(plan)
    # By value, not by text: a plan has its name however it is written.
    names = [name for name, preset in PRESETS.items() if _means(preset, plan)]
    sent = _traffic(plan, workers, parameters, shapes)
    if cluster is not None and sent is not None:
        sent = over(cluster, sent, plan, computing)
    # Two where no number was given, the fewest between whom anything travels.
    table = part_table(plan, workers or 2, shapes) if shapes is not None else []
    layers = _layers(plan, workers or 2, shapes) if shapes is not None else []
    axes = _explain_axes(plan)
    return PlanExplanation(plan=str(plan), names=names, parts=axes, traffic=sent, table=table, layers=layers)


def _measured_workers(plan: Plan, workers: int | None, hosts: int) -> int:
    """Return the workers of a measured cluster: one on each host, but servers may have hosts of their own."""
    if isinstance(plan.exchange, ServerTerm) and workers is not None and 1 <= workers <= hosts:
        return workers
    if workers not in (None, hosts):
        raise UsageError(f"--workers {workers}: the cluster has {hosts}; leave --workers out")
    return hosts


def _layers(plan: Plan, workers: int, shapes: Shapes) -> list[LayerChoice]:
    chosen = match_parts(plan.patterns, list(shapes)) if plan.parts else [0] * len(shapes)
    found = []
    for number, each in enumerate(plan.plans):
        own = {name: shape for (name, shape), part in zip(shapes.items(), chosen, strict=True) if part == number}
        found += choose_layers(each.factors, own, workers) if each.factors is not None else []
    return found


def _traffic(plan: Plan, workers: int | None, parameters: int, shapes: Shapes | None) -> StepTraffic | None:
    """Of the whole model; of one with parts there is a table instead."""
    if workers is None or (plan.parts and shapes is not None):
        return None
    if plan.parts:
        raise UsageError("--workers: parts differ in size, so give the model too: --model weights.safetensors")
    return traffic(plan, workers, parameters) if shapes is None else shape_traffic(plan, workers, shapes)


def _explain_axes(plan: Plan) -> list[AxisExplanation]:
    """Each term once, however many parts hold it."""
    found: list[AxisExplanation] = []
    for axis, question in AXES.items():
        here = dict.fromkeys(term for term in plan.terms if term.axis == axis)
        found += [_part(axis, question, str(term), about(type(term)), _holders(plan, term)) for term in here]
        if not here:
            found.append(_part(axis, question, "", TermDocs(does="No codec: values travel as they are.")))
    return found


def _holders(plan: Plan, term: NamedTerm) -> tuple[str, ...]:
    # These hold for the whole model, also where parts have plans of their own.
    every = term.axis in ("split", "balance")
    return () if every else tuple(part.pattern for part in plan.parts if term in part.plan.terms)


def about(kind: type[NamedTerm]) -> TermDocs:
    """Split the docstring of a term at its labels `Costs:`, `Cites:` and `Avoid:`."""
    found = {"does": ""}
    label = "does"
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        head, colon, rest = line.partition(":")
        # Only these three: a colon in a sentence begins no label.
        if colon and head in ("Costs", "Cites", "Avoid"):
            label, line = head.lower(), rest
        found[label] = f"{found.get(label, '')} {line.strip()}".strip()
    return msgspec.convert(found, TermDocs)


def _part(axis: Axis, question: str, term: str, about: TermDocs, patterns: tuple[str, ...] = ()) -> AxisExplanation:
    docs = msgspec.structs.asdict(about)
    return AxisExplanation(axis=axis, question=question, term=term, patterns=patterns, **docs)


def _means(preset: NamedPlan, plan: Plan) -> bool:
    return Plan.parse(preset.text) == plan


def _write(part: AxisExplanation) -> str:
    where = f" (of {', '.join(part.patterns)})" if part.patterns else ""
    lines = [f"{part.axis}, {part.question}: {part.term or 'no term'}{where}"]
    for label in ("does", "costs", "cites", "avoid"):
        if words := getattr(part, label):
            lines += textwrap.wrap(words, WIDTH, initial_indent=f"  {label:<7}", subsequent_indent=" " * 9)
    return "\n".join(lines)
