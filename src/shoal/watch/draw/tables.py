"""The tables of the page: workers, metrics, peers, warnings. A table without rows is None."""

from msgspec import structs
from rich.console import Group
from rich.table import Table
from rich.text import Text

from shoal.core.events import ServerCounted
from shoal.watch import figures
from shoal.watch.record import RunRecord
from shoal.watch.table import add_figures, plain_table
from shoal.watch.worker import WorkerRecord


def workers_table(workers: list[WorkerRecord]) -> Table:
    """One row per worker: what it did, and how it ended."""
    table = plain_table("rank")
    table.add_column("host", max_width=8, no_wrap=True, overflow="crop")
    add_figures(table, "pid", "steps", "samples", "samples/s", "step ms", "wait ms", "sent")
    table.add_column("state", no_wrap=True)
    for worker in workers:
        table.add_row(
            str(worker.rank),
            Text(figures.clean(worker.host)),
            str(worker.pid or ""),
            figures.count(worker.steps),
            figures.count(worker.samples),
            figures.count(worker.samples_per_second),
            figures.milliseconds(worker.seconds / max(1, worker.steps)),
            figures.milliseconds(worker.phases.exchange_wait),
            figures.size(worker.bytes_sent),
            Text(figures.clean(worker.state)),
        )
    return table


def failures(workers: list[WorkerRecord]) -> list[Text]:
    """The workers that did not end well, in full sentences: the table has no room for an error."""
    why = {"failed": "no reason recorded", "killed": "no end recorded", "silent": "nothing recorded"}
    found = [(worker.rank, worker.state, worker.error or why.get(worker.state, "")) for worker in workers]
    return [
        Text(figures.clean(f"worker {rank} {state}: {error}"), overflow="fold") for rank, state, error in found if error
    ]


def metrics_table(metrics: dict[str, float]) -> Table | None:
    """The last report, one metric to a row."""
    table = Table.grid(padding=(0, 2))
    for name, number in metrics.items():
        table.add_row(Text(figures.clean(name), overflow="fold"), figures.value(number))
    return table if metrics else None


def peers_table(workers: list[WorkerRecord]) -> Table | None:
    """Per worker the bytes to each peer; those on sockets only where there were any."""
    senders = [worker for worker in workers if worker.peers]
    table = Table.grid(padding=(0, 2))
    for worker in senders:
        parts = [f"to {peer}: {_traffic(*counted)}" for peer, counted in worker.peers.items()]
        table.add_row(f"from {worker.rank}", Text(figures.clean(", ".join(parts)), overflow="fold"))
    return table if senders else None


def rounds_table(workers: list[WorkerRecord]) -> Table | None:
    """Under `local(…)`, per worker: rounds, steps in one, what one cost, and those that did not count."""
    agreed = [(worker.rank, worker.rounds) for worker in workers if worker.rounds is not None and worker.rounds.rounds]
    table = plain_table("rank")
    add_figures(table, "rounds", "steps each", "ms each", "sent each", "sent a step", "dropped")
    for rank, made in agreed:
        table.add_row(
            str(rank),
            figures.count(made.rounds),
            f"{made.steps / made.rounds:.3g}",
            figures.milliseconds(made.seconds / made.rounds),
            figures.size(made.sent / made.rounds),
            figures.size(made.sent / max(1, made.steps)),
            figures.count(made.dropped),
        )
    return table if agreed else None


def datagrams_table(workers: list[WorkerRecord]) -> Table | None:
    """Under `datagrams`, per worker: what it sent, and what became of those that were for it."""
    told = [(worker.rank, worker.datagrams) for worker in workers if worker.datagrams is not None]
    table = plain_table("rank")
    add_figures(table, "sent", "bytes", "unsent", "received", "lost", "late", "refused")
    for rank, made in told:
        numbers = [made.unsent, made.received, made.lost, made.late, made.refused]
        table.add_row(str(rank), figures.count(made.sent), figures.size(made.sent_bytes), *map(figures.count, numbers))
    return table if told else None


def fetched_table(workers: list[WorkerRecord]) -> Table | None:
    """With `--data-servers`, per worker: batches of each server and its own, bytes, how long training waited."""
    told = [(worker, worker.fetched) for worker in workers if worker.fetched is not None]
    table = plain_table("rank")
    table.add_column("batches by server")
    add_figures(table, "itself", "bytes", "overdue", "lost", "waited")
    for worker, made in told:
        spent = sum(structs.astuple(worker.phases)) * worker.steps
        share = f" ({made.waited / spent:.1%})" if spent > 0 else ""
        local, overdue, lost = map(figures.count, (made.local, made.overdue, made.lost))
        words = (_by_server(made.batches), local, figures.size(made.bytes), overdue, lost)
        table.add_row(str(worker.rank), *words, f"{made.waited:.2f} s{share}")
    return table if told else None


def _by_server(batches: list[int]) -> str:
    """Each, or of many the smallest and the largest number."""
    if len(batches) > 6:
        return f"{len(batches)} of {min(batches):,} to {max(batches):,}"
    return " ".join(map(figures.count, batches))


def servers_table(workers: list[WorkerRecord]) -> Table | None:
    """Under `stale(…)` and `async`, per worker: pushes, bytes, how stale its values were, for whom it waited."""
    served = [(worker.rank, worker.servers) for worker in workers if worker.servers is not None]
    table = plain_table("rank")
    add_figures(table, "pushes", "refused", "late", "pulls", "up", "down")
    # A column only where steps began again, because 80 letters hold no more.
    restarts = any(made.restarts for _, made in served)
    add_figures(table, *["restarts"] * restarts)
    table.add_column("steps by staleness")
    table.add_column("waited for")
    for rank, made in served:
        stale = sorted(made.staleness.items(), key=lambda item: int(item[0]))
        waits = sorted(made.waited.items(), key=lambda item: -item[1])[:3]
        table.add_row(
            str(rank),
            figures.count(made.pushes),
            figures.count(made.refused),
            figures.count(made.late),
            figures.count(made.pulls),
            _of_plain(made.up, made.plain_up),
            _of_plain(made.down, made.plain_down),
            *[_restarts(made)] * restarts,
            ", ".join(f"{behind}: {steps}" for behind, steps in stale),
            figures.clean(", ".join(f"{member} {milliseconds / 1e3:.1f} s" for member, milliseconds in waits)),
        )
    return table if served else None


def _restarts(made: ServerCounted) -> str:
    """How many steps began again, which part of all that is, and how many updates of others that gained each."""
    if not made.restarts:
        return "0"
    share, gained = made.restarts / max(1, made.pushes), made.gained / made.restarts
    return f"{figures.count(made.restarts)} ({share:.0%}, {gained:.1f} updates each)"


def _of_plain(size: int, plain: int) -> str:
    """Bytes, and which part they are of those without a codec, where one saved half or more."""
    return f"{figures.size(size)} (1/{plain / size:.1f})" if 0 < 2 * size <= plain else figures.size(size)


def happenings(record: RunRecord) -> Group | None:
    """Events of the lab, in order: when they were planned, when they came."""
    lines = [
        Text(f"{event.planned}: {figures.clean(event.text)} (second {event.second:.2f}, step {event.step})")
        for event in record.happenings()
    ]
    return Group(*lines) if lines else None


def losses(record: RunRecord) -> Group | None:
    """Workers that were lost on the way: when, why, and what became of them."""
    lines = [Text(f"second {event.second:.2f}: {figures.clean(event.text)}") for event in record.losses()]
    return Group(*lines) if lines else None


def newcomers(workers: list[WorkerRecord]) -> Group | None:
    """Workers that came while the others trained: how their state got to them, and what the others waited for."""
    lines = []
    for worker in workers:
        for came in worker.entered:
            size = figures.size(came.streamed)
            streamed = f"{size} were streamed while the others trained ({came.updates} updates), they waited"
            whole = "the others waited"
            told = f"worker {worker.rank} at step {came.step}, after {figures.seconds(came.seconds)}: "
            told += f"{streamed if came.streamed else whole} for {figures.size(came.given)}"
            told += f"; nothing was streamed: {came.why}" if came.why and not came.streamed else ""
            lines.append(Text(figures.clean(told), overflow="fold"))
    return Group(*lines) if lines else None


def warnings_list(workers: list[WorkerRecord]) -> Group | None:
    """Each warning once, with the workers that gave it."""
    ranks: dict[str, list[str]] = {}
    for worker in workers:
        for text in dict.fromkeys(worker.warnings):
            ranks.setdefault(text, []).append(str(worker.rank))
    lines = [Text(f"worker {', '.join(who)}: {figures.clean(text)}") for text, who in ranks.items()]
    return Group(*lines) if lines else None


def _traffic(payload: int, wire: int) -> str:
    return figures.size(payload) + (f" ({figures.size(wire)} on sockets)" if wire else "")


def plan_history(record: RunRecord, workers: list[WorkerRecord]) -> Group | None:
    """By which plan the run trained from which step on, if it was switched; by time: attempts take steps back."""
    # Reversed, so that of several workers that tell of one switch worker 0's word stands.
    switched = {(e.number, e.step, e.plan): e for worker in reversed(workers) for e in worker.switched}
    if not switched:
        return None
    lines = [(info.started, f"from step {info.step}: {info.plan}") for info in record.attempts]
    for event in switched.values():
        carried = f"; {', '.join(event.carried)} carried over" if event.carried else ""
        dropped = f"; {', '.join(event.dropped)} did not carry over" if event.dropped else ""
        lines.append((event.at, f"from step {event.step}: {event.plan}{carried}{dropped}"))
    return Group(*(Text(figures.clean(line), overflow="fold") for _, line in sorted(lines)))
