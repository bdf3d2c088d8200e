"""Scripts that are killed, and what can be told of them afterwards."""

import json
import re
from pathlib import Path
from typing import Any

from forked import Outcome, command

from shoal.membership import wal
from shoal.membership.log_entries import LEFT, LEFT_EARLY, MemberLost, ViewInstalled

TRAIN = """
import os, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
x = torch.randn(SAMPLES, 4)
data = TensorDataset(torch.arange(SAMPLES), x, torch.randn(SAMPLES, 2))
loader = DataLoader(data, batch_size=BATCH, shuffle=True, OPTIONS)
model, optimizer, loader = run.join(model, optimizer, loader)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))
seen = open(f"seen-{run.rank}.txt", "a", buffering=1)
loss = torch.zeros(())  # who leases samples may get none in a pass
for epoch in run.epochs(EPOCHS):
    for ids, inputs, labels in loader:
        loss = ((model(inputs) - labels) ** 2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        seen.write(f"{run.size} {run.step} {epoch} {' '.join(map(str, ids.tolist()))}\\n")
        EACH
    run.report(loss=loss)
if run.is_main:
    print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()), optimizer.param_groups[0]["lr"])
"""


def shoal(folder: Path, *words: str, **env: str) -> Outcome:
    """`shoal WORDS` in `folder`, with time for a machine that does much else."""
    return command(folder, *words, **env).wait(90)


def script(
    folder: Path, *, samples: int = 96, batch: int = 4, epochs: int = 2, options: str = "", each: str = ""
) -> None:
    """Write `script.py`; `each` is done after every step."""
    text = TRAIN.replace("OPTIONS", options).replace("EACH", each or "pass")
    for name, value in (("SAMPLES", samples), ("BATCH", batch), ("EPOCHS", epochs)):
        text = text.replace(name, str(value))
    (folder / "script.py").write_text(text)


def forget(folder: Path) -> None:
    """Remove what a script noted about its samples."""
    for path in folder.glob("seen-*.txt"):
        path.unlink()


def ledger(folder: Path, name: str) -> list[dict[str, Any]]:
    outcome = shoal(folder, "show", name, "--ledger", "--json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["epochs"]


def assert_exactly_once(folder: Path, name: str, samples: int, epochs: int) -> None:
    """By the ledger: nothing missing, nothing twice."""
    found = ledger(folder, name)
    assert [row["epoch"] for row in found] == list(range(epochs))
    for row in found:
        wanted = {"samples": samples, "missing": 0, "duplicate": 0, "finished": True}
        assert wanted.items() <= row.items(), row


def assert_seen_once(folder: Path, samples: int, epochs: int) -> None:
    """By what the script itself noted: of every step the last attempt counts."""
    lines: dict[tuple[int, str], tuple[str, list[int]]] = {}
    last: dict[int, str] = {}
    for path in sorted(folder.glob("seen-*.txt")):
        for line in path.read_text().splitlines():
            size, step, epoch, *ids = line.split()
            lines[(int(step), f"{size} {path.name}")] = (epoch, [int(i) for i in ids])
            last[int(step)] = size
    used: dict[str, list[int]] = {}
    for (step, who), (epoch, ids) in lines.items():
        if who.startswith(f"{final_size(folder, step)} "):
            used.setdefault(epoch, []).extend(ids)
    assert sorted(used) == [str(e) for e in range(epochs)]
    for epoch, ids in used.items():
        assert sorted(ids) == list(range(samples)), epoch


def given_up(folder: Path) -> list[str]:
    """By the coordinator's log: members that were lost, in this order; those that said goodbye were not."""
    entries, _ = wal.read(folder / "runs/one/members.log")
    return [
        entry.member for entry in entries if isinstance(entry, MemberLost) and entry.reason not in (LEFT, LEFT_EARLY)
    ]


def assert_generations_grow(folder: Path) -> None:
    """No generation is used twice, whoever wrote it."""
    entries, _ = wal.read(folder / "runs/one/members.log")
    generations = [entry.install.view.generation for entry in entries if isinstance(entry, ViewInstalled)]
    assert generations == sorted(set(generations))


def noted(folder: Path, slot: int) -> set[tuple[int, int]]:
    """The steps that a script itself noted, each with the number of workers that made it."""
    lines = (folder / f"seen-{slot}.txt").read_text().splitlines()
    return {(int(step), int(size)) for size, step, *_ in map(str.split, lines)}


def assert_no_step_lost(folder: Path, slots: int, lockstep: bool = True) -> None:
    """By the notes: no step is left out. In `lockstep` all who made a step made it as one of as many; workers that step
    by themselves hear of a loss at different steps."""
    noted_by = [noted(folder, slot) for slot in range(slots)]
    together = set[tuple[int, int]]().union(*noted_by)
    steps = sorted({step for step, _ in together})
    left_out = sorted(set(range(steps[-1])) - set(steps))
    assert not left_out, f"steps that nobody has made: {left_out}"
    sizes = {step: [size for each, size in sorted(together) if each == step] for step in steps}
    odd = {step: found for step, found in sizes.items() if len(found) > 1}
    assert not (lockstep and odd), f"steps that workers made as one of different numbers: {odd}"


def assert_no_step_twice(folder: Path) -> None:
    """By the notes of each process: one batch for each step and no step twice, whoever was lost meanwhile.

    So what a loss makes the others redo is within the step under way. A process that was killed ends anywhere; one
    that has no samples in the last step of an epoch has nothing to note of it.
    """
    notes = [path.read_text().split("\n")[:-1] for path in folder.glob("notes-*.txt")]
    assert len(notes) >= 3
    for lines in notes:
        assert lines[::2] == ["batch"] * len(lines[::2]), lines
        steps = [int(line.removeprefix("step ")) for line in lines[1::2]]
        assert steps == sorted(set(steps)), steps


def final_size(folder: Path, step: int) -> int:
    """How many workers made step `step` in the history that counts."""
    (directory,) = (folder / "runs").iterdir()
    attempts = [json.loads((directory / "run.json").read_text())]
    attempts += [json.loads(path.read_text()) for path in sorted(directory.glob("attempt-*.json"))]
    return next(one["workers"] for one in reversed(attempts) if one["step"] <= step)


def resumed_at(outcome: Outcome, folder: Path) -> int:
    (directory,) = (folder / "runs").iterdir()
    newest = max(directory.glob("attempt-*.json"), key=lambda p: int(re.findall(r"\d+", p.name)[0]))
    return int(json.loads(newest.read_text())["step"])
