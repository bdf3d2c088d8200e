"""What the page draws of a run, as plain values for JSON. Each function is one address under /api/runs/ID."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from shoal.core.errors import ShoalError
from shoal.plan.explain import explain
from shoal.plan.load import load
from shoal.serve.serving_notice import servers_of
from shoal.train.checkpoint.manifest import listed
from shoal.watch.page.catalog import RunCatalog, state_of
from shoal.watch.page.culprit import WINDOW, name_culprit
from shoal.watch.page.recent import StepSums
from shoal.watch.page.registered import describe
from shoal.watch.page.run_state import COLUMNS, RunState
from shoal.watch.page.series import rounded, totals
from shoal.watch.running import look
from shoal.watch.scaling import own_members
from shoal.watch.summary import read_summary, summarise_workers
from shoal.watch.verdict import verdict
from shoal.watch.worker import WorkerRecord

GANTT = ("load", "forward", "backward", "encode", "exchange_wait", "update", "other")
"""Within a step, in the order they are drawn."""
RESUMABLE = ("interrupted", "failed", "killed")
MOST_TIMELINE = 20_000
"""Steps or blocks of all workers in one answer."""


def overview(catalog: RunCatalog, state: RunState) -> dict[str, Any]:
    """Everything but curves, timeline and logs."""
    records, notice, info = state.records(), catalog.notice(state.dir), state.opened.info
    summary_now = read_summary(state.dir)
    summary = summary_now or summarise_workers(state.opened, records, -1)
    live = look(notice) if notice is not None else None
    minutes = last_minutes(state)
    # Only a coordinator can change members or the plan.
    changes = notice is not None and notice.coordinator is not None and not notice.stopping
    return {
        "run": info.run,
        "dir": str(state.dir),
        "plan": plan_now(state, records),
        "workers": info.workers,
        "script": info.script,
        "arguments": info.arguments,
        "started": info.started,
        "seed": info.seed,
        "lab": info.lab,
        "machine": info.machine,
        "versions": info.versions,
        "state": state_of(notice, summary_now),
        "summary": summary,
        "estimated": any(worker.estimated for worker in state.workers.values()),
        "reading": not state.caught_up,
        "culprit": culprit(state, minutes, records, live is not None),
        "broken": state.broken,
        "members": members(state, minutes, records, live),
        "news": state.news[-100:],
        "verdict": verdict(records),
        "chosen": [event for record in records[:1] for event in record.chosen],
        "guarded": [event for record in records for event in record.guarded][-5:],
        "checkpoints": checkpoints(state),
        "servers": servers_of(state.dir),
        "reports": state.reports[-50:],
        "registered": describe(state.dir),
        "evaluation": (state.dir / "evaluation.json").exists(),
        "can_switch": changes,
        "can_add": notice.room if changes and notice is not None else 0,
        "can_remove": own_members(notice) if changes and notice is not None else [],
        "can_resume": notice is None and state_of(notice, summary_now) in RESUMABLE and bool(listed(state.dir)),
        "can_stop": live is not None and live.state in ("running", "stopped"),
    }


def plan_now(state: RunState, records: list[WorkerRecord]) -> str:
    """By which it trains, or has trained last."""
    switched = [event for record in records for event in record.switched]
    return max(switched, key=lambda event: event.at).plan if switched else state.opened.info.plan


def last_minutes(state: RunState) -> dict[int, StepSums]:
    """Of every worker that made a step in the last minute."""
    since = state.now - WINDOW
    minutes = {rank: worker.recent.sums(since) for rank, worker in sorted(state.workers.items())}
    return {rank: minute for rank, minute in minutes.items() if minute is not None}


def culprit(state: RunState, minutes: dict[int, StepSums], records: list[WorkerRecord], live: bool) -> str:
    ends = [worker.recent.last.at for worker in state.workers.values() if worker.recent.last is not None]
    silence = time.time() - max(ends) if live and ends else 0.0
    return name_culprit(minutes, records, silence)


def members(
    state: RunState, minutes: dict[int, StepSums], records: list[WorkerRecord], live: Any
) -> list[dict[str, Any]]:
    """One for each worker: what it does now if the run is live, and what it did."""
    now = {member.worker: member for member in live.members} if live is not None else {}
    front = max((worker.front for worker in state.workers.values()), default=0)
    found = []
    for record in records:
        member, worker = now.get(record.rank), state.workers[record.rank]
        minute = minutes.get(record.rank)
        bars = {name: rounded(minute[name] / minute.steps) if minute else 0.0 for name in (*GANTT, "exposed")}
        found.append(
            {
                "worker": record.rank,
                "host": record.host,
                "pid": record.pid,
                "device": record.device,
                "state": member.state if member is not None else record.state,
                "cause": (member.reason if member is not None else "") or record.error,
                "starts": member.starts if member is not None else 1,
                "silent": member.last_progress if member is not None else None,
                "step": worker.front,
                "behind": front - worker.front,
                "samples": record.samples,
                "samples_per_second": record.samples_per_second,
                "bytes_sent": record.bytes_sent,
                "bytes_wire": record.bytes_wire,
                "exposed": bars.pop("exposed"),
                "minute": bars,
                "warnings": record.warnings[-5:],
            }
        )
    return found


def curves(state: RunState) -> dict[str, Any]:
    """Every logged scalar, samples and bytes a second, by step; `axes` gives the same steps in other units."""
    blocks = [worker.blocks for worker in state.workers.values()]
    width, samples = totals(blocks, COLUMNS.index("samples"))
    sent = totals(blocks, COLUMNS.index("sent"))[1]
    seconds = [each / max(1, len(blocks)) for each in totals(blocks, COLUMNS.index("seconds"))[1]]
    axes = {"samples": samples, "sent": sent, "seconds": seconds}
    return {
        "scalars": {
            name: {"step": each.steps(), "value": each.means(0), "width": each.width}
            for name, each in state.scalars.items()
        },
        "speed": {
            "step": [number * width for number in range(len(samples))],
            "samples_per_second": _rates(samples, seconds),
            "bytes_per_second": _rates(sent, seconds),
        },
        "axes": {name: {"width": width, "values": [rounded(each) for each in values]} for name, values in axes.items()},
        "reports": [{"step": each.step, "epoch": each.epoch, "metrics": each.metrics} for each in state.reports],
        "broken": state.broken,
    }


def _rates(amounts: Sequence[float], seconds: Sequence[float]) -> list[float | None]:
    """How much a second in each block, where both are totals up to its end; None where no time passed."""
    pairs = zip(pairwise([0.0, *amounts]), pairwise([0.0, *seconds]), strict=True)
    return [rounded((b - a) / (after - before)) if after > before else None for (a, b), (before, after) in pairs]


def timeline(state: RunState, seconds: float) -> dict[str, Any]:
    """Steps of the last `seconds`: [end, step, steps, transfer, then the phases in order]; older ones are merged."""
    since = state.now - seconds
    rows = {
        rank: [
            [round(s.at, 3), s.step, s.steps, s.transfer, *(round(getattr(s, name), 5) for name in GANTT)]
            for s in worker.recent.since(since)
        ]
        for rank, worker in sorted(state.workers.items())
    }
    most = max(1, MOST_TIMELINE // max(1, len(rows)))
    # The newest of each worker, if there are more than an answer holds.
    return {"now": state.now, "phases": GANTT, "workers": {rank: steps[-most:] for rank, steps in rows.items()}}


def network(state: RunState) -> dict[str, Any]:
    """Workers, and what each has sent to every other, with the link's rate and delay where they were measured."""
    records = state.records()
    edges = []
    for record in records:
        for peer in sorted({*record.peers, *record.links}, key=int):
            payload, wire = record.peers.get(peer, (0, 0))
            rate, rtt = record.links.get(peer, (None, None))
            edges.append(
                {"from": record.rank, "to": int(peer), "payload": payload, "wire": wire, "rate": rate, "rtt": rtt}
            )
    nodes = [{"worker": record.rank, "host": record.host, "state": record.state} for record in records]
    return {"nodes": nodes, "edges": edges, "seconds": max((record.seconds for record in records), default=0.0)}


def model(state: RunState) -> dict[str, Any]:
    """Layers in order: class, elements, norm of the gradient, backward and aggregation times (mean over workers)."""
    records = state.records()
    first = next((record for record in records if record.layers), None)
    if first is None:
        return {"models": [], "layers": []}

    def mean(field: str, layer: str) -> float | None:
        known = [getattr(record, field).get(layer) for record in records]
        numbers = [number for number in known if number is not None]
        return rounded(sum(numbers) / len(numbers)) if numbers else None

    layers = [
        {
            "name": name,
            "class": kind,
            "elements": elements,
            "gradient": mean("gradient_by_layer", name),
            "backward": mean("backward_by_layer", name),
            "aggregation": mean("aggregation_by_layer", name),
        }
        for name, (kind, elements) in first.layers.items()
    ]
    return {"models": first.models, "layers": layers}


def plan_parts(state: RunState) -> dict[str, Any]:
    """The plan by part, in the words of its terms."""
    plan = plan_now(state, state.records())
    try:
        found = explain(load(plan), state.opened.info.workers)
    except ShoalError as error:  # of a version that knew other terms
        return {"plan": plan, "names": [], "parts": [], "error": str(error)}
    traffic = str(found.traffic) if found.traffic is not None else ""
    return {"plan": found.plan, "names": found.names, "parts": found.parts, "traffic": traffic, "error": ""}


def checkpoints(state: RunState) -> list[dict[str, Any]]:
    """Newest last; `kept` tells which are still on the disk."""
    kept = {int(path.name.rpartition("-")[2]) for path in listed(state.dir)}
    told = [msgspec.structs.asdict(event) | {"kept": event.step in kept} for event in state.saved[-30:]]
    # Not every event of a sampled record was read.
    missing = kept - {event.step for event in state.saved}
    return [*({"step": step, "kept": True} for step in sorted(missing)), *told]
