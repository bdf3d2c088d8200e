"""The table of a job's stages."""

from rich.table import Table
from rich.text import Text

from shoal.watch import figures
from shoal.watch.record import RunRecord
from shoal.watch.stages import measure_stages
from shoal.watch.table import add_figures, plain_table


def stages_table(record: RunRecord) -> Table | None:
    """One row for each name of a stage."""
    found = measure_stages(record)
    if not found:
        return None
    table = plain_table()
    table.add_column("stage", max_width=32, no_wrap=True, overflow="crop")
    add_figures(table, "times", "workers wanted", "seconds", "core-seconds")
    for each in found:
        taken = (str(each.times), str(each.wanted), f"{each.seconds:.1f}", f"{each.core_seconds:.1f}")
        table.add_row(Text(figures.clean(each.stage)), *taken)
    return table
