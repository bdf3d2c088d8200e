"""Data servers are killed, frozen and broken: the result is that of a run without them, and nothing is left behind."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from forked import command, soon
from scripts import assert_exactly_once, assert_seen_once, forget, script, shoal

pytestmark = pytest.mark.timeout(300)
SAMPLES, EPOCHS = 96, 2
DATASET = """
class Noted(TensorDataset):
    def __getitem__(self, i):
        if not os.path.exists(f"pid-{os.getpid()}"):
            open(f"pid-{os.getpid()}", "w").write(str(run.rank))
        EACH
        return super().__getitem__(i)
data = Noted("""


def noted(folder: Path, each: str = "pass", slow: str = "time.sleep(0.0 if os.path.exists('go') else 0.1)") -> None:
    """The script of other faults, with a dataset that notes which processes prepare samples, and as what."""
    script(folder, samples=SAMPLES, epochs=EPOCHS, each=slow)
    text = (folder / "script.py").read_text().replace("data = TensorDataset(", DATASET.replace("EACH", each))
    (folder / "script.py").write_text(text)


def preparing(folder: Path) -> dict[int, int]:
    """Process -> its rank, of those that have prepared samples and live."""
    files = [file for file in folder.glob("pid-*") if file.read_text()]
    found = {int(file.name[4:]): int(file.read_text()) for file in files}
    return {pid: rank for pid, rank in found.items() if os.path.exists(f"/proc/{pid}")}


def servers(folder: Path) -> list[int]:
    return [pid for pid, rank in preparing(folder).items() if rank >= 2]


def fetched(folder: Path) -> list[dict[str, object]]:
    """What each worker's record says of its batches."""
    lines = [(folder / f"runs/one/worker-{slot}.jsonl").read_text().splitlines() for slot in (0, 1)]
    return [[json.loads(line) for line in each if '"fetched"' in line][-1] for each in lines]


def checksum(out: str) -> str:
    return next(line for line in out.splitlines() if "checksum" in line)


def test_killed_servers_change_nothing(tmp_path: Path) -> None:
    """One of two is killed, then both are: batches are prepared elsewhere, and servers start again."""
    noted(tmp_path)
    alone = shoal(tmp_path, "run", "-w", "2", "script.py", go="1")
    forget(tmp_path)
    shutil.rmtree(tmp_path / "runs")
    run = command(tmp_path, "run", "-w", "2", "--name", "one", "--data-servers", "2", "script.py")
    assert soon(60.0, lambda: len(servers(tmp_path)) == 2)
    gone = servers(tmp_path)
    os.kill(gone[0], signal.SIGKILL)
    assert soon(60.0, lambda: len(servers(tmp_path)) == 2), "it is not started again"
    for pid in servers(tmp_path):
        os.kill(pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    outcome = run.wait(90)
    assert outcome.code == 0, outcome.err
    assert "died of signal 9; it is started again" in outcome.err
    assert checksum(outcome.out) == checksum(alone.out)
    assert_exactly_once(tmp_path, "one", SAMPLES, EPOCHS)
    assert_seen_once(tmp_path, SAMPLES, EPOCHS)
    assert sum(int(str(each["lost"])) for each in fetched(tmp_path)) >= 2


def test_a_killed_worker_is_replaced_and_fetches_too(tmp_path: Path) -> None:
    """Its samples are dealt again by the trainer; servers know nothing of members."""
    noted(tmp_path)
    run = command(tmp_path, "run", "-w", "2", "--name", "one", "--data-servers", "1", "script.py")
    assert soon(60.0, lambda: servers(tmp_path))

    def pids() -> list[int]:
        lines = (tmp_path / "runs/one/worker-1.jsonl").read_text().splitlines()
        return [json.loads(line)["pid"] for line in lines if '"event":"started"' in line]

    time.sleep(0.5)
    os.kill(pids()[0], signal.SIGKILL)
    assert soon(60.0, lambda: len(pids()) == 2)
    (tmp_path / "go").touch()
    outcome = run.wait(90)
    assert outcome.code == 0, outcome.err
    assert "worker 1 was lost (SIGKILL)" in outcome.err
    assert_exactly_once(tmp_path, "one", SAMPLES, EPOCHS)


def test_an_error_of_the_dataset_ends_the_run_and_names_sample_and_server(tmp_path: Path) -> None:
    noted(tmp_path, each="if i == 41: raise ValueError('rotten picture')", slow="pass")
    outcome = shoal(tmp_path, "run", "-w", "2", "--data-servers", "1", "script.py")
    assert outcome.code == 1
    assert "ValueError: data server 0, sample 41: rotten picture" in outcome.err


def test_a_script_that_fails_in_the_servers_alone_is_trained_all_the_same(tmp_path: Path) -> None:
    noted(tmp_path, slow="pass")
    text = (tmp_path / "script.py").read_text()
    (tmp_path / "script.py").write_text(text.replace("torch.manual_seed(7)", "torch.manual_seed(7); [0, 1][run.rank]"))
    outcome = shoal(tmp_path, "run", "-w", "2", "--name", "one", "--data-servers", "1", "script.py")
    assert outcome.code == 0, outcome.err
    assert "data server 0 failed: IndexError: list index out of range; it is started again" in outcome.err
    assert all(each["local"] == 24 for each in fetched(tmp_path))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("two", "'two' is neither a number of processes nor HOST:PORT=KEYFILE; write --data-servers 2"),
        ("0", "give 1 to 256"),
        ("127.0.0.1:7=none.key", "cannot read the keys in 'none.key'"),
    ],
)
def test_a_wrong_number_of_servers_is_refused(tmp_path: Path, given: str, words: str) -> None:
    script(tmp_path)
    outcome = shoal(tmp_path, "run", "--data-servers", given, "script.py")
    assert outcome.code == 2
    assert words in outcome.err


def test_a_loader_without_indices_is_refused(tmp_path: Path) -> None:
    script(tmp_path)
    text = (tmp_path / "script.py").read_text().replace("shuffle=True, ", "")
    text = text.replace("loader = DataLoader(data", "from torch.utils.data import IterableDataset\n"
        "class Stream(IterableDataset):\n    def __iter__(self): return iter(range(9))\n"
        "loader = DataLoader(Stream()")  # fmt: skip
    (tmp_path / "script.py").write_text(text)
    outcome = shoal(tmp_path, "run", "--data-servers", "1", "script.py")
    assert outcome.code == 1
    assert "--data-servers with a loader of the iterable dataset Stream: servers prepare" in outcome.err
