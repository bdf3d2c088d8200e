"""Puts the newest table of `wire.py` into docs/plans.md, between two marks: `python benchmarks/wire_docs.py`.

Codec by rate: how much faster a step is than DDP's and than without a codec, the bytes, the accuracy.
"""

import json
import sys
from pathlib import Path

from network_report import FIRST, FLOOR, network_name, table
from wire_marks import NONE, ratio
from wire_report import Raw, of_hosts, sent_of, share

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "plans.md"
REPORTS = ROOT / "benchmarks" / "reports"
BEGIN, END = "<!-- the table of benchmarks/wire_docs.py -->", "<!-- end of the table -->"


def newest() -> Path | None:
    return max(REPORTS.glob("*-wire.json"), default=None)


def section(raw: Raw, name: str) -> str:
    """What stands between the marks; `name` is that of the report's page."""
    rates = [network_name(rate, 0.0).split(",")[0] for rate in raw["rates"]]
    parts = [
        f"Steps of a lab with emulated hosts ([report](../benchmarks/reports/{name})). Under a rate: how many times "
        "faster a step is than DDP's / than without a codec. Bytes: what a worker puts on sockets, of `allreduce`'s. "
        "Accuracy: the MLP on MNIST after equally many samples, 2 hosts, one seed."
    ]
    for model in raw["models"]:
        for hosts in raw["hosts"]:
            part = of_hosts(raw, hosts)
            rows = [_row(part, model, plan) for plan in raw["contestants"] if plan != FLOOR]
            parts += [f"**{model}, {hosts} hosts**", table(["plan", "bytes", "accuracy", *rates], rows)]
    return "\n\n".join(parts)


def _row(raw: Raw, model: str, plan: str) -> list[str]:
    slowest = raw["rates"][-1]
    # wire(auto) sends what it chose for each rate
    told = share(sent_of(raw, model, slowest, plan), sent_of(raw, model, slowest, NONE))
    reached = [each["accuracy"] for each in raw["accuracy"] if each["contestant"] == plan and "accuracy" in each]
    accuracy = f"{100 * reached[0]:.1f} %" if model == "mlp" and reached else "–"
    speeds = [" / ".join(_faster(raw, model, rate, plan, other) for other in (FIRST, NONE)) for rate in raw["rates"]]
    return [f"`{plan}`", "–" if told == "-" else told, accuracy, *speeds]


def _faster(raw: Raw, model: str, rate: int, plan: str, other: str) -> str:
    found = 1.0 if plan == other else ratio(raw, model, rate, plan, other)
    return f"{1 / found:.2f}" if found else "–"


def put(page: str, text: str) -> str:
    """The page with `text` between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} lacks {BEGIN!r} or {END!r}; write both, in this order, where the table belongs")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def main() -> None:
    report = newest()
    if report is None:
        sys.exit(f"no *-wire.json in {REPORTS.name}; make one: python benchmarks/wire.py --data DIR")
    raw = json.loads(report.read_text())
    PAGE.write_text(put(PAGE.read_text(), section(raw, report.with_suffix(".md").name)))
    print(f"written: {PAGE.name}, from {report.name}")


if __name__ == "__main__":
    main()
