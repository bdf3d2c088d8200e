"""Codecs in slow networks: our plans, DDP, its hooks and the floor, with two and four hosts, two models, four rates.

    python benchmarks/wire.py --data DIR                 the whole table, about 35 minutes
    python benchmarks/wire.py --data DIR --quick         a smoke test; writes into a temporary folder

DIR holds `mnist/` (its four gzip files) and `tinyshakespeare.txt`. Every turn is written down at once in
`wire.part.jsonl`: a benchmark that was stopped goes on where it was (--fresh begins anew), and leaves no lab behind.
`python benchmarks/wire_docs.py` then puts the newest table into docs/plans.md.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from network_bench import Bench, check_words, conduct, facts_of, usual_options
from wire_bench import WireBench
from wire_report import markdown
from wire_stages import AUTO, AUTO_UP_TO, FLOOR_SECONDS, SHARES, Cell

from shoal.core.units import BitRate

RATES = "none,1gbit,100mbit,10mbit"
GOAL = "accuracy>=0.98"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual_options(parser)
    parser.add_argument("--models", default=",".join(FLOOR_SECONDS))
    parser.add_argument("--hosts", default="2,4")
    parser.add_argument("--rates", default=RATES, help="of a link: none,10mbit,…")
    parser.add_argument("--contestants", default=",".join(SHARES))
    parser.add_argument("--repeats", type=int, default=1, help="turns of each contestant, where steps are short")
    parser.add_argument("--close", type=int, default=2, help="more turns of allreduce and wire(auto) without a limit")
    parser.add_argument("--judged", type=int, default=2, help="more turns of whoever stands in a figure that was asked")
    parser.add_argument("--seconds", type=float, default=1.2, help="about what is counted of a turn at each rate")
    parser.add_argument("--seeds", type=int, default=3, help="of the runs to a goal; 0: no such runs, no accuracies")
    parser.add_argument("--look", type=int, default=50, help="steps between two looks at the accuracy")
    args = parser.parse_args()
    if args.quick:
        args.models, args.hosts, args.rates, args.contestants = "mlp", "2", "none,100mbit", "alone,ddp,dgc(0.001)"
        args.repeats, args.close, args.judged, args.seconds, args.seeds, args.look = 1, 0, 0, 0.5, 1, 10
        args.out = args.out or Path(tempfile.mkdtemp(prefix="shoal-wire-quick-"))
    args.out = args.out or Path(__file__).parent / "reports"
    args.data = args.data.absolute()
    args.models, args.contestants = args.models.split(","), args.contestants.split(",")
    args.hosts = [_whole(parser, "--hosts", text) for text in args.hosts.split(",")]
    args.rates = sorted(0 if text == "none" else BitRate.parse(text).bits for text in args.rates.split(","))
    args.rates = [rate for rate in args.rates if not rate] + [rate for rate in args.rates[::-1] if rate]
    known = {"--models": (args.models, FLOOR_SECONDS), "--contestants": (args.contestants, SHARES)}
    check_words(parser, args, known)
    return args


def _whole(parser: argparse.ArgumentParser, option: str, text: str) -> int:
    if not text.isdigit() or not 2 <= int(text) <= 16:
        parser.error(f"{option}: {text!r} is no number from 2 to 16; write {option} 2,4")
    return int(text)


def left_out(bench: Bench) -> list[dict[str, Any]]:
    """Cells in which `wire(auto)` is not measured."""
    args, facts = bench.args, bench.facts
    cells = [Cell(model, hosts, facts[model]["bytes"]) for model in args.models for hosts in args.hosts]
    return [
        {"model": cell.model, "hosts": cell.hosts, "rate": rate, "contestant": AUTO, "beyond": AUTO_UP_TO}
        for cell in cells
        for rate in args.rates
        if AUTO in args.contestants and not cell.has_auto(rate)
    ]


def raw_of(bench: Bench) -> dict[str, Any]:
    args, kinds = bench.args, ("turns", "accuracy", "goals", "checks")
    said = {"hosts": args.hosts, "rates": args.rates, "models": bench.facts, "contestants": args.contestants}
    return {**said, "left_out": left_out(bench), **{kind: bench.kept.of(kind) for kind in kinds}}


def main() -> int:
    args = arguments()
    facts = {model: facts_of(model, "accuracy>=0.5" if args.quick else GOAL) for model in args.models}
    return conduct(args, "wire", lambda kept: WireBench(args, kept, facts), markdown, raw_of)


if __name__ == "__main__":
    sys.exit(main())
