"""The exchange bucket by bucket, and what the codec came to."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shoal.core.events import BucketFigures, SharesChanged
from shoal.watch import figures
from shoal.watch.table import add_figures, plain_table
from shoal.watch.verdict import CodecVerdict
from shoal.watch.worker import WorkerRecord

SHOWN = 12
"""Rows at the most: the largest buckets."""


def exchange_section(workers: list[WorkerRecord], found: CodecVerdict | None) -> Group | None:
    """The verdict's sentences over worker 0's buckets; nothing where nothing travelled."""
    exchanges = next((worker.exchanges for worker in workers if worker.exchanges), [])
    if found is None or not (found.codec or found.wired):
        return None
    lines = [Text(figures.clean(line), style="bold" if "costs you time" in line else "") for line in found.words]
    buckets = [bucket for each in exchanges for bucket in each.buckets]
    return Group(*lines, _table(sorted(buckets, key=lambda bucket: -bucket.raw)[:SHOWN]))


def decisions(workers: list[WorkerRecord]) -> Group | None:
    """What the run decided by itself: wire(auto), order(auto) and balance(auto), and what the guard found."""
    # Of one worker, because all decide alike.
    worker = next((worker for worker in workers if worker.chosen or worker.guarded or worker.shares), None)
    if worker is None:
        return None
    lines = [f"step {e.step}: {e.codec or 'no codec'} from the next step on: {e.reason}" for e in worker.chosen]
    lines += [_shares_line(event) for event in worker.shares]
    for event in worker.guarded:
        then = {
            "kept": "within",
            "tightened": f"below: {event.ratio or 0:.3g} of the elements travel from the next step on; budget",
            "outside": "outside, and this codec cannot send more; choose another; budget",
        }.get(event.action, event.action)
        lines.append(f"step {event.step}: cosine {event.cosine:.3f} over {event.steps} steps, {then} {event.budget:g}")
    return Group(*(Text(figures.clean(line), overflow="fold") for line in lines))


def _shares_line(event: SharesChanged) -> str:
    """Who computes how much from now on, and the measured speeds that are the reason."""
    shares = ", ".join(f"worker {slot} {share:.1%}" for slot, share in event.shares.items())
    rates = ", ".join(f"{rate:,.0f}" for rate in event.rates.values())
    return f"step {event.step}: {shares} of every batch" + (f", at {rates} samples/s while busy" if rates else "")


def _table(buckets: list[BucketFigures]) -> Table:
    """Milliseconds a step; `left` is the residual's norm as a share of the gradient's."""
    table = plain_table()
    table.add_column("layers", max_width=18, no_wrap=True, overflow="crop")
    add_figures(table, "raw", "sent", "encode", "transfer", "wait", "decode", "hidden", "left")
    for bucket in buckets:
        table.add_row(
            Text(figures.clean(_named(bucket.layers))),
            figures.size(bucket.raw),
            figures.size(bucket.sent),
            *(figures.milliseconds(getattr(bucket, name)) for name in ("encode", "transfer", "wait", "decode")),
            f"{bucket.hidden:.0%}",
            f"{bucket.residual / bucket.gradient:.1f}" if bucket.residual and bucket.gradient else "-",
        )
    return table


def _named(layers: list[str]) -> str:
    if not layers:
        return "statistics"
    return layers[0] if len(layers) == 1 else f"{layers[0]} +{len(layers) - 1}"


def hidden_line(workers: list[WorkerRecord]) -> Text | None:
    """Say how much of the transfer computing has hidden in the mean step, where links tell when things came in."""
    steps = sum(worker.steps for worker in workers)
    transfer = sum(worker.transfer * worker.steps for worker in workers) / max(1, steps)
    exposed = sum(worker.exposed * worker.steps for worker in workers) / max(1, steps)
    if not transfer:
        return None
    share = 1 - exposed / transfer
    return Text(f"{figures.milliseconds(transfer)} ms a step, {share:.0%} of it hidden behind computing")


def stood_back(workers: list[WorkerRecord]) -> Group | None:
    """Say how long workers let other runs of their hosts go first; nothing where none did."""
    lines = [
        f"worker {worker.rank}: {seconds:.1f} s for {run}"
        for worker in workers
        for run, seconds in sorted(worker.stood_back.items(), key=lambda each: -each[1])
    ]
    return Group(*(Text(figures.clean(line), overflow="fold") for line in lines)) if lines else None
