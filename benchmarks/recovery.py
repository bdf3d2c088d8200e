"""What a loss costs: workers killed and frozen, the coordinator stopped, and one kill after another.

    python benchmarks/recovery.py [--peers torchrun,torchft --torchft PYTHON] [--parts kills,freezes,…]
    python benchmarks/recovery.py --quick                   a smoke test of some minutes; writes into a temporary folder

Four workers train a model of a million parameters on the hosts of a lab, under Shoal, torchrun with checkpoints, and
torchft, each alone on the machine. A loss is over with the first step that is made without the lost worker. Every
part is written down at once in `recovery.part.jsonl` and in the dated report: a benchmark that was stopped, or asked
for other parts, goes on with what is there (--fresh begins anew).
"""

import argparse
import datetime
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from kept import Kept
from recovery_contestants import Contestant, Ended, Shoal
from recovery_parts import PARTS, QUICK, Amount
from recovery_peers import CHECKPOINT, JOIN_MS, PEERS, Torchft
from recovery_report import markdown
from report import machine_line

from shoal.core.version import __version__

NOTES = [
    "Random workers get SIGKILL or SIGSTOP at random moments, each when all train again; 1.07 M parameters, batch 32. "
    "*Commit again*: from the signal to the first step that was made without the lost worker. *Noticed*: from the "
    "signal to the launcher's word that it is lost. *Made again*: steps that were made before, and had to be repeated. "
    "*Goodput*: samples a second that count, against the same training in peace just before. *Stand still*: how much "
    "longer than usual the first step with one worker more took, in which it is given the state.",
    f"torchrun: one agent on every host, DDP over gloo, all workers started again, from a checkpoint every "
    f"{CHECKPOINT:.0f} s; a frozen worker is not noticed before gloo's timeout of 30 minutes, so none is frozen; "
    "it is given TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which its workers did not meet again within 120 s after "
    "a kill (tried once).",
    f"torchft: one replica group on every host, gloo with a timeout of 5 s as its example has it, lighthouse with "
    f"--min_replicas 2 --join_timeout_ms {JOIN_MS}, the latter from its README; with 1 s, less than a step in which "
    "one is given the state, the four did not train together within 120 s in two of four tries. Its DDP has a hook of "
    "ours: that of 0.2.0 ends the process by an assertion when an allreduce fails, so that a kill ended all four "
    "(two of two). Lost workers are started again at once, as new processes that import torch; its samples belong to a "
    "replica group, and those of one that is away are lost.",
]


def entry_of(contestant: str, part: str) -> dict[str, Any]:
    """What names a part."""
    return {"kind": "part", "contestant": contestant, "part": part}


def newest(kept: Kept) -> list[dict[str, Any]]:
    """One entry for each part of each contestant, in the order of both lists."""
    found = {(entry["contestant"], entry["part"]): entry for entry in kept.of("part")}
    names = [Shoal.name, *PEERS]
    return [found[name, part] for name in names for part in PARTS if (name, part) in found]


def measure(kind: type[Contestant], part: str, amount: Amount, args: argparse.Namespace) -> dict[str, Any]:
    """One part of one contestant. What it does not survive is a result, too, with what it said."""
    entry: dict[str, Any] = {"contestant": kind.name, "part": part, "error": "", "command": command()}
    with tempfile.TemporaryDirectory(prefix="shoal-recovery-") as folder:
        one = kind(args.workers, args.lab, Path(folder).resolve())
        try:
            with one:
                one.whole(0.0)
                entry |= PARTS[part](one, random.Random(args.seed), amount)
            entry["samples"] = one.samples()
        except Ended as error:
            entry["error"] = str(error).replace(folder, "…")[:300] or "it ended without a word"
    return entry


def command() -> str:
    """As it was typed; where things lay is nobody's business."""
    hidden = {"--out": "DIR", "--torchft": "PYTHON"}
    words = [hidden.get(before, word) for before, word in zip(["", *sys.argv[1:]], sys.argv[1:], strict=False)]
    return " ".join(["python", "benchmarks/recovery.py", *words])


def write(args: argparse.Namespace, kept: Kept, machine: str) -> Path:
    parts = newest(kept)
    versions = {"Shoal": f"Shoal {__version__}", "torchrun": f"torchrun {torch.__version__}"}
    versions["torchft"] = next((f"torchft {e['version']}" for e in parts if "version" in e), "torchft")
    raw = {
        "commands": list(dict.fromkeys(entry["command"] for entry in parts)),
        "machine": machine,
        "notes": NOTES,
        "versions": versions,
        "workers": args.workers,
        "lab": args.lab,
        "parts": parts,
    }
    stem = args.out / f"{datetime.date.today():%Y-%m-%d}-recovery"
    stem.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    stem.with_suffix(".md").write_text(markdown(raw))
    return stem.with_suffix(".md")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a little of each, to see that it works")
    parser.add_argument("--lab", default="4 hosts, 100mbit", help="emulated hosts, one for each worker")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of: " + ",".join(PARTS))
    parser.add_argument("--contestants", default=Shoal.name, help="Shoal, or nothing: then the peers alone")
    parser.add_argument("--peers", default="torchrun", help="some of: " + ",".join(PEERS))
    parser.add_argument("--torchft", metavar="PYTHON", default=sys.executable, help="an interpreter that has torchft")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, help="single kills; else 20")
    parser.add_argument("--freezes", type=int, help="single freezes; else 5")
    parser.add_argument("--churn", type=float, help="seconds with a kill every 15; else 600")
    parser.add_argument("--peer-repeats", type=int, help="single kills and freezes of the peers; else as many")
    parser.add_argument("--peer-churn", type=float, help="seconds of the same for the peers; else as many")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.parts = [word for word in args.parts.split(",") if word]
    args.peers = [word for word in args.peers.split(",") if word]
    for given, known in ((args.parts, PARTS), (args.peers, PEERS)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    quick = tempfile.mkdtemp(prefix="shoal-recovery-quick-") if args.quick and args.out is None else None
    args.out = Path(quick) if quick else args.out or Path(__file__).parent / "reports"
    return args


def amounts(args: argparse.Namespace) -> tuple[Amount, Amount]:
    """For Shoal, and for the peers."""
    usual = QUICK if args.quick else Amount()
    own = Amount(
        kills=args.kills or usual.kills,
        freezes=args.freezes or usual.freezes,
        outage=usual.outage,
        calm=usual.calm,
        churn=args.churn or usual.churn,
        every=usual.every,
    )
    repeats = args.peer_repeats
    peers = Amount(
        kills=repeats or own.kills,
        freezes=min(repeats, own.freezes) if repeats else own.freezes,
        outage=own.outage,
        calm=own.calm,
        churn=args.peer_churn or own.churn,
        every=own.every,
    )
    return own, peers


def main() -> int:
    args = arguments()
    machine, (own, others) = machine_line(), amounts(args)
    args.out.mkdir(parents=True, exist_ok=True)
    kept = Kept(args.out / "recovery.part.jsonl", {"workers": args.workers, "lab": args.lab}, args.fresh)
    Torchft.python = args.torchft
    version = Torchft.version() if Torchft.name in args.peers else ""
    kinds = [*([Shoal] if args.contestants else []), *(PEERS[name] for name in args.peers)]
    for kind in kinds:
        for part in args.parts:
            if part not in kind.parts or kept.has(entry_of(kind.name, part)):
                continue
            entry = measure(kind, part, own if kind is Shoal else others, args)
            kept.add(entry_of(kind.name, part) | entry | ({"version": version} if kind is Torchft else {}))
            print(f"{json.dumps(entry)}\nwritten: {write(args, kept, machine)}", flush=True)
    path = write(args, kept, machine)
    print(f"{path.read_text()}\nwritten: {path}")
    if all(kept.has(entry_of(kind.name, part)) for kind in (Shoal, *PEERS.values()) for part in kind.parts):
        kept.path.unlink()  # it has done its duty
    return int(any(entry["error"] for entry in newest(kept)))


if __name__ == "__main__":
    sys.exit(main())
