"""The one look of every table: a line under the names, no frame, so that 80 columns hold it."""

from rich import box
from rich.table import Table


def plain_table(*right: str) -> Table:
    """An empty table; `right` names columns of figures."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    add_figures(table, *right)
    return table


def add_figures(table: Table, *names: str) -> None:
    """Add columns that are aligned to the right and never broken."""
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
