"""The page `shoal show` draws: readable at 80 columns, without colour, on any terminal.

header · loss curve · phases of a step · transfers · other runs · exchange · parts · plans · stages · rounds · workers ·
metrics · bytes by peer · warnings
"""

from rich.console import Group, RenderableType
from rich.text import Text

from shoal.core.record import RunSummary
from shoal.watch.draw.bars import phase_bars
from shoal.watch.draw.curve import BrailleCurve
from shoal.watch.draw.exchange import decisions, exchange_section, hidden_line, stood_back
from shoal.watch.draw.header import header
from shoal.watch.draw.parts import parts_table
from shoal.watch.draw.stages import stages_table
from shoal.watch.draw.tables import (
    datagrams_table,
    failures,
    fetched_table,
    happenings,
    losses,
    metrics_table,
    newcomers,
    peers_table,
    plan_history,
    rounds_table,
    servers_table,
    warnings_list,
    workers_table,
)
from shoal.watch.record import RunRecord
from shoal.watch.series import main_scalar, mean_over_workers
from shoal.watch.summary import known_summary
from shoal.watch.verdict import verdict
from shoal.watch.worker import WorkerRecord, read_workers

__all__ = ["draw_run"]


def draw_run(record: RunRecord) -> Group:
    """Everything worth seeing of one run; sections without content are left out."""
    workers = read_workers(record)
    # Handed on, because reading the workers' files is the slow part.
    summary = known_summary(record, workers)
    parts: list[RenderableType] = [header(record, summary)]
    for title, body in _sections(record, summary, workers):
        if body is not None:
            parts += [Text(f"\n{title}", style="bold"), body]
    return Group(*parts)


def _sections(
    record: RunRecord, summary: RunSummary, workers: list[WorkerRecord]
) -> list[tuple[str, RenderableType | None]]:
    name = main_scalar(record)
    curve = BrailleCurve(mean_over_workers(record, name)) if name else None
    return [
        (f"{name}, mean over workers", curve),
        ("mean step", phase_bars(summary.phases) if summary.steps else None),
        ("on the way between hosts", hidden_line(workers)),
        ("stood back on the link", stood_back(workers)),
        ("exchange", exchange_section(workers, verdict(workers))),
        ("parts of the model", parts_table(record.info, workers)),
        ("plans", plan_history(record, workers)),
        ("stages", stages_table(record)),
        ("what the run decided", decisions(workers)),
        ("rounds", rounds_table(workers)),
        ("datagrams", datagrams_table(workers)),
        ("servers", servers_table(workers)),
        ("data servers: batches", fetched_table(workers)),
        ("workers", Group(workers_table(workers), *failures(workers))),
        ("metrics", metrics_table(summary.metrics)),
        ("bytes sent to each peer", peers_table(workers)),
        ("what the launcher did", happenings(record)),
        ("lost workers", losses(record)),
        ("workers that came later", newcomers(workers)),
        ("warnings", warnings_list(workers)),
    ]
