"""Draws the pictures of the documentation as SVG: by hand, but for `network.svg`, which matplotlib draws.

    python docs/img/make.py

`layers.svg`: the parts and who may import whom. `exchange.svg`: one bucket's way through shared memory.
`steps.svg`: the newest benchmarks/reports/*-steps.json as bars.
`headline.svg`: the newest benchmarks/reports/*-recovery.json: what a killed worker costs.
`network.svg`: the newest benchmarks/reports/*-network.json, if there is one: step time over networks.
"""

import json
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).parent
REPORTS = HERE.parents[1] / "benchmarks" / "reports"
INK, PAPER, BLUE, TEAL, SAND, GREY = "#1b2733", "#ffffff", "#2f6f9f", "#3a9188", "#e9d8a6", "#c9d1d9"


class Canvas:
    """A list of SVG elements with a size."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.items: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, fill: str, label: str = "", ink: str = INK) -> None:
        self.items.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" fill="{fill}"/>')
        if label:
            self.text(x + w / 2, y + h / 2 + 4.5, label, anchor="middle", ink=ink)

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", size: int = 13, ink: str = INK) -> None:
        style = f'text-anchor="{anchor}" font-size="{size}" fill="{ink}"'
        self.items.append(f'<text x="{x}" y="{y}" {style}>{words}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, ink: str = INK, arrow: bool = False) -> None:
        end = ' marker-end="url(#tip)"' if arrow else ""
        self.items.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{ink}" stroke-width="1.5"{end}/>')

    def save(self, name: str) -> None:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="system-ui, sans-serif"><defs><marker id="tip" markerWidth="8" '
            'markerHeight="8" refX="6" refY="3" orient="auto"><path d="M0,0 L6,3 L0,6 z"/></marker></defs>'
            f'<rect width="100%" height="100%" fill="{PAPER}"/>'
        )
        (HERE / name).write_text(head + "".join(self.items) + "</svg>\n")


def layers() -> None:
    """The layers, top to bottom."""
    rows = [
        (["cli", "testing"], "one file per command · conformance cases"),
        (["bench"], "plans, peers and models, measured"),
        (["watch"], "reads the record"),
        (["train"], "what the script touches"),
        (["plan"], "the choice, as a value"),
        (["sync", "data", "models"], "how and when · which samples · the registry"),
        (["launch"], "starts, watches and ends workers"),
        (["lab", "groups"], "emulated hosts · the workers of a run"),
        (["membership"], "who takes part"),
        (["transport"], "links between hosts"),
        (["hosts"], "shared memory of one host"),
        (["wire"], "buckets, codecs, kernels"),
        (["core"], "errors, ids, events, journal"),
    ]
    canvas = Canvas(640, 30 + 46 * len(rows))
    for number, (names, words) in enumerate(rows):
        y = 16 + 46 * number
        width = 280 / len(names)
        for place, name in enumerate(names):
            canvas.box(16 + place * width, y, width - 8, 34, BLUE if number % 2 else TEAL, name, PAPER)
        canvas.text(312, y + 22, words)
    canvas.line(622, 24, 622, canvas.height - 24, arrow=True)
    canvas.text(612, canvas.height / 2, "imports", anchor="end", size=12)
    canvas.save("layers.svg")


def exchange() -> None:
    """More than two workers share the adding of a bucket; drawn with two: fill, sum own slice of all, write it back."""
    canvas = Canvas(800, 250)
    for worker in range(2):
        y = 50 + 100 * worker
        canvas.text(14, y + 22, f"worker {worker}")
        canvas.box(86, y, 150, 34, SAND, "backward fills")
        for part in range(2):
            canvas.box(290 + part * 85, y, 80, 34, GREY if part != worker else (BLUE, TEAL)[part], f"slice {part}")
            canvas.box(530 + part * 85, y, 80, 34, (BLUE, TEAL)[part], "sum", PAPER)
        canvas.line(240, y + 17, 284, y + 17, arrow=True)
        canvas.text(712, y + 22, "= p.grad", size=12)
    for part in range(2):
        x = 330 + 85 * part
        canvas.line(x, 88, x, 146, (BLUE, TEAL)[part])
    canvas.line(462, 117, 524, 117, arrow=True)
    canvas.text(290, 30, "bucket in shared memory", size=12)
    canvas.text(530, 30, "each slice, summed by one worker", size=12)
    canvas.text(86, 225, "Worker r adds up slice r of every worker's bucket and writes the sum back into all of them.")
    canvas.save("exchange.svg")


def steps() -> None:
    """Ratios to the floor, from the newest report."""
    report = json.loads(sorted(REPORTS.glob("*-steps.json"))[-1].read_text())
    rows = report["rows"]
    canvas = Canvas(720, 60 + 52 * len(rows))
    canvas.text(16, 24, "Step time as a multiple of the floor (the same step without any communication)", size=14)
    scale = 300
    for number, row in enumerate(rows):
        y = 44 + 52 * number
        canvas.text(16, y + 22, f"{row['model']}, {row['workers']} workers")
        for place, (name, key, fill) in enumerate([("DDP", "DDP / floor", GREY), ("Shoal", "Shoal / floor", TEAL)]):
            value = float(row[key].split()[0])
            canvas.box(190, y + 19 * place, max(2.0, (value - 0.5) * scale), 16, fill)
            canvas.text(196 + (value - 0.5) * scale, y + 19 * place + 13, f"{name} {value:.2f}", size=12)
    canvas.line(190 + 0.5 * scale, 38, 190 + 0.5 * scale, canvas.height - 12, "#a33")
    canvas.save("steps.svg")


def headline() -> None:
    """Seconds from `kill -9` to the others' next step, and samples lost or trained twice, from the newest report."""
    report = json.loads(sorted(REPORTS.glob("*-recovery.json"))[-1].read_text())
    kills = {part["contestant"]: part for part in report["parts"] if part["part"] == "kills"}
    canvas = Canvas(720, 66 + 44 * len(kills))
    canvas.text(
        16, 24, f"kill -9 of one of {report['workers']} workers: seconds until the others make the next step", size=14
    )
    seconds = {name: statistics.median(loss["seconds"] for loss in part["losses"]) for name, part in kills.items()}
    for number, (name, value) in enumerate(sorted(seconds.items(), key=lambda item: item[1])):
        y = 44 + 44 * number
        canvas.text(16, y + 21, name)
        width = max(4.0, value / max(seconds.values()) * 330)
        canvas.box(100, y, width, 30, TEAL if name == "Shoal" else GREY)
        total = [part["samples"] for part in report["parts"] if part["contestant"] == name]
        lost, doubled = sum(each["lost"] for each in total), sum(each["doubled"] for each in total)
        words = f"{value:.2g} s; {lost} samples lost, {doubled} trained twice"
        canvas.text(110 + width, y + 20, words, size=12)  # beside the bar: text inside it would overflow short bars
    note = "samples: all kills, freezes and outages; python benchmarks/recovery.py"
    canvas.text(16, canvas.height - 10, f"{report['lab']}, a million parameters; {note}", size=12)
    canvas.save("headline.svg")


def network(report: Path, out: Path) -> None:
    """Median steps with their quartiles, one panel per model; the line is the floor with the ring's ideal on top."""
    import matplotlib
    from matplotlib.figure import Figure  # without pyplot: no window system, nothing global

    sys.path.insert(0, str(REPORTS.parent))
    import network_report as told

    matplotlib.rcParams["svg.hashsalt"] = "network"  # the same figures give the same file
    raw = json.loads(report.read_text())
    figure = Figure(figsize=(10, 4.2 * len(raw["models"])), layout="constrained")
    panels = figure.subplots(len(raw["models"]), squeeze=False)[:, 0]
    for axes, (model, facts) in zip(panels, raw["models"].items(), strict=True):
        networks = told.networks(raw, model)
        for place, name in enumerate(raw["contestants"]):
            spreads = [told.step_spread(told.turns_of(raw, model, each, name)) for each in networks]
            known = [(at + (place - 2) * 0.16, each) for at, each in enumerate(spreads) if each]
            heights = [each.median for _, each in known]
            errors = [[e.median - e.low for _, e in known], [e.high - e.median for _, e in known]]
            axes.bar([at for at, _ in known], heights, 0.15, yerr=errors, label=name, color=f"C{place}", capsize=2)
        for at, each in enumerate(networks):
            floor = told.step_spread(told.turns_of(raw, model, each, told.FLOOR))
            ideal = told.ideal_seconds(facts["bytes"], raw["workers"], *each)
            if floor and ideal:
                label = {"label": "floor + ring's ideal"} if at == len(networks) - 1 else {}
                axes.hlines(floor.median + ideal, at - 0.42, at + 0.42, color="black", linestyle="--", lw=1, **label)
        axes.set_xticks(
            range(len(networks)), [told.network_name(*each).replace(", ", "\n") for each in networks], fontsize=8
        )
        axes.set_yscale("log")
        axes.set_ylabel("seconds a step")
        axes.set_title(f"{model}, {facts['bytes'] / 1e6:.2f} MB of gradient, {raw['workers']} hosts", fontsize=10)
        axes.legend(fontsize=8, ncols=3, loc="upper left")
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    layers()
    exchange()
    steps()
    headline()
    for report in sorted(REPORTS.glob("*-network.json"))[-1:]:
        network(report, HERE / "network.svg")
