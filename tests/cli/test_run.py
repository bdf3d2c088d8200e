"""`shoal run`: what it prints, what it leaves, how it ends."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked import TRAIN, Forked, be_fresh, command, reap, shoal, soon, train
from forked import _command as call

from shoal.cli.main import main
from shoal.core.record import read_info
from shoal.launch import stop_requests
from shoal.launch.policy import threads_per_worker

pytestmark = pytest.mark.usefixtures("tidy")

KEYS = (
    "run dir plan workers steps samples seconds samples_per_second bytes_raw bytes_sent bytes_wire metrics phases exit"
)
PHASES = {"load", "forward_backward", "exchange_wait", "encode", "update"}
RANK = "from shoal.train.run import start; run = start(); rank = run.rank\n"


def test_a_script_trains_on_two_workers(tmp_path: Path) -> None:
    outcome = train(tmp_path, TRAIN, "--workers", "2", "--seed", "3", "--json")
    assert outcome.code == 0, outcome.err
    summary = outcome.json
    assert set(KEYS.split()) <= set(summary)
    assert set(summary["phases"]) >= PHASES
    assert (summary["plan"], summary["workers"]) == ("allreduce, every(1)", 2)
    assert (summary["steps"], summary["samples"], summary["exit"]) == (6, 48, 0)
    assert summary["metrics"] == {"quality": 0.5}
    assert summary["bytes_raw"] == 2 * 6 * 10 * 4
    assert outcome.out.startswith("[0] checksum")
    assert re.fullmatch(r"shoal: 6 steps, 48 samples in \S+ s \(\d+ samples/s\); shoal show \S+\n", outcome.err)


def test_the_record_holds_what_was_started(tmp_path: Path) -> None:
    outcome = train(tmp_path, TRAIN, "--workers", "2", "--name", "one", "--runs", "there", "--seed", "5", "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    info = read_info(tmp_path / "there" / "one")
    assert (info.run, info.workers, info.seed, info.script) == ("one", 2, 5, "script.py")
    assert info.command[:2] == ["shoal", "run"]
    names = {path.name for path in (tmp_path / "there" / "one").iterdir()}
    assert names >= {"run.json", "worker-0.jsonl", "worker-1.jsonl", "summary.json"}


def test_a_short_run_has_tensorboard_files_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(tmp_path, TRAIN, "--name", "one")
    files = list((tmp_path / "runs/one/tensorboard/worker-0").iterdir())
    assert len(files) == 1
    assert files[0].stat().st_size > 1000


def test_the_seed_decides(tmp_path: Path) -> None:
    script = TRAIN.replace("torch.manual_seed(7)\n", "")
    first, again, other = (train(tmp_path, script, "-w", "2", "--seed", seed) for seed in ("1", "1", "2"))
    assert first.checksum == again.checksum != other.checksum


def test_options_after_the_script_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint(sys.argv)\n")
    outcome = shoal(tmp_path, "run", "script.py", "--workers", "9", "--json", "--", "-q")
    assert outcome.out == "[0] ['script.py', '--workers', '9', '--json', '--', '-q']\n"


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert [threads_per_worker(workers) for workers in (1, 2, 3, 100)] == [8, 4, 2, 1]
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    assert threads_per_worker(2) is None


def test_each_worker_gets_its_threads(tmp_path: Path) -> None:
    script = "import torch; torch.ones(2); print(torch.get_num_threads())"
    cores = len(os.sched_getaffinity(0))
    outcome = train(tmp_path, script, "--workers", "2")
    assert sorted(outcome.out.splitlines()) == [f"[{rank}] {max(1, cores // 2)}" for rank in range(2)]


WRONG = {
    "no script given": ["run", "--json"],
    "missing script": ["run", "--json", "nothing.py"],
    "a folder": ["run", "--json", "."],
    "unknown term": ["run", "--json", "--plan", "allreduc", "script.py"],
    "missing plan file": ["run", "--json", "--plan", "no.toml", "script.py"],
    "no number": ["run", "--json", "--workers", "two", "script.py"],
    "no workers": ["run", "--json", "--workers", "0", "script.py"],
    "too many workers": ["run", "--json", "--workers", "481", "script.py"],
    "seed below 0": ["run", "--json", "--seed", "-1", "script.py"],
    "name is a path": ["run", "--json", "--name", "../out", "script.py"],
    "empty name": ["run", "--json", "--name", "", "script.py"],
    "unknown option": ["run", "--json", "--worker", "2", "script.py"],
    "runs is a file": ["run", "--json", "--runs", "script.py", "script.py"],
    "runs below a file": ["run", "--json", "--runs", "script.py/runs", "script.py"],
    "unknown command": ["runn", "script.py"],
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_a_wrong_command_is_refused_on_one_line(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["shoal", *words])
    with pytest.raises(SystemExit) as left:
        main(words)
    printed = capfd.readouterr()
    assert (left.value.code, printed.out) == (2, "")
    assert re.fullmatch(r"shoal: [^\n]+\n", printed.err), printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_a_name_is_used_once(tmp_path: Path) -> None:
    assert train(tmp_path, "", "--name", "one").code == 0
    before = sorted((tmp_path / "runs" / "one").iterdir())
    outcome = train(tmp_path, "", "--name", "one", "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("shoal: run 'one' exists already")
    assert sorted((tmp_path / "runs" / "one").iterdir()) == before


OTHERS = {
    "sleeping": "time.sleep(600)",
    "ignoring SIGTERM": "[signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; time.sleep(600)",
    "waiting for it": "run.barrier()",
    "computing": "while True: torch.ones(9).sum()",
    "loading": "next(iter(DataLoader(range(9), num_workers=1))); time.sleep(600)",
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_worker_that_raises_stops_the_others(tmp_path: Path, other: str) -> None:
    script = f"""{RANK}
import signal, time, torch
from torch.utils.data import DataLoader
def fail():
    raise ValueError("bad weather")
run.barrier()
if rank == 1:
    fail()
{other}
"""
    outcome = train(tmp_path, script, "--workers", "3", "--json")
    assert (outcome.code, outcome.json["exit"]) == (1, 1)
    lines = outcome.err.splitlines()
    assert lines[0] == "[1] Traceback (most recent call last):"
    assert lines.count("[1] ValueError: bad weather") == 1
    assert "shoal: worker 1 failed: ValueError: bad weather" in lines
    frames = [line for line in lines if 'File "' in line]
    assert all(f'File "{tmp_path}/script.py"' in line for line in frames), frames


def test_the_same_error_of_all_is_shown_once(tmp_path: Path) -> None:
    outcome = train(tmp_path, "1 / 0", "--workers", "2")
    assert outcome.code == 1
    assert outcome.err.count("Traceback") == outcome.err.count("1 / 0") == 1
    assert re.search(r"shoal: worker \d failed.*: ZeroDivisionError: division by zero", outcome.err)


def test_a_failed_worker_held_by_its_own_thread_still_stops_the_run(tmp_path: Path) -> None:
    script = RANK + "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n1 / (rank - 1)"
    outcome = train(tmp_path, script, "--workers", "2")
    assert outcome.code == 1
    assert "shoal: worker 1 failed: ZeroDivisionError" in outcome.err


def test_the_record_says_how_each_worker_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_requests, "REQUESTS", stop_requests.REQUESTS[:1])  # a busy machine takes its time
    script = TRAIN + "\nif run.rank == 1: raise SystemExit(3)\nrun.barrier()"
    assert train(tmp_path, script, "--workers", "2", "--name", "one").code == 1
    last = [(tmp_path / f"runs/one/worker-{rank}.jsonl").read_text().splitlines()[-1] for rank in range(2)]
    ends = [json.loads(line) for line in last]
    assert [end["exit"] for end in ends] == ["failed", "failed"]
    assert ends[1]["error"] == "SystemExit(3)"


SIGNALS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSEGV": "ctypes.string_at(8)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
}


@pytest.mark.parametrize("name", SIGNALS)
def test_a_worker_that_dies_of_a_signal_is_named(tmp_path: Path, name: str) -> None:
    script = f"{RANK}import ctypes, os, signal\nif rank == 1: {SIGNALS[name]}\nrun.barrier()"
    outcome = train(tmp_path, script, "--workers", "2", "--restarts", "0", "--min-workers", "2", "--json")
    assert (outcome.code, outcome.json["exit"]) == (1, 1)
    number = getattr(signal, name).value
    assert outcome.err.splitlines()[0] == (f"shoal: worker 1 died of {name} (signal {number}); the others were stopped")


def test_a_worker_that_vanishes_is_named(tmp_path: Path) -> None:
    script = RANK + "import os\nif rank == 0: os._exit(4)\nrun.barrier()"
    outcome = train(tmp_path, script, "--workers", "2")
    assert outcome.code == 1
    assert outcome.err.startswith("shoal: worker 0 ended without a word")


EXITS = {"3": 1, "0": 0, "None": 0, "''": 1, "'too hot'": 1}


@pytest.mark.parametrize("said", EXITS)
def test_a_script_may_exit(tmp_path: Path, said: str) -> None:
    outcome = train(tmp_path, f"import sys; sys.exit({said})", "--json")
    assert outcome.code == outcome.json["exit"] == EXITS[said]
    assert (f"shoal: worker 0 failed: the script called sys.exit({said})" in outcome.err) == bool(EXITS[said])
    assert ("[0] too hot\n" in outcome.err) == (said == "'too hot'")
    assert "Traceback" not in outcome.err


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    outcome = train(tmp_path, "x = (1\n", "--workers", "2")
    assert outcome.code == 1
    lines = outcome.err.splitlines()
    assert re.fullmatch(rf'\[\d\]   File "{tmp_path}/script.py", line 1', lines[0])
    assert "SyntaxError: '(' was never closed" in outcome.err


def test_a_script_without_shoal_runs(tmp_path: Path) -> None:
    outcome = train(tmp_path, "print('hello')", "--workers", "2", "--json")
    assert outcome.code == 0
    assert sorted(outcome.out.splitlines()[:-1]) == ["[0] hello", "[1] hello"]
    assert (outcome.json["steps"], outcome.json["samples"], outcome.json["exit"]) == (0, 0, 0)


AS_PYTHON = """
import json, multiprocessing, os, sys
import sibling
try:
    answer = input()
except EOFError as error:
    answer = repr(error)
def work(queue):
    queue.put(__name__)
if __name__ == "__main__":
    queues = []
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        queues.append(queue.get())
        process.join()
    print(json.dumps([__file__, __spec__, __package__, sorted(globals()), sys.argv, sys.path[0], answer, queues,
                      sibling.__file__, sys.modules["__main__"].__file__, os.getcwd(), sys.stdin.read()]))
"""


def test_a_script_finds_what_python_would_give_it(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "sibling.py").write_text("")
    (folder / "script.py").write_text(AS_PYTHON)
    words = ["code/script.py", "--a", "b"]
    theirs = subprocess.run([sys.executable, *words], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True)
    ours = shoal(tmp_path, "run", *words)
    assert ours.code == theirs.returncode == 0, ours.err
    assert json.loads(ours.out.removeprefix("[0] ")) == json.loads(theirs.stdout)
    assert not list(folder.glob("__pycache__/script*"))


def test_what_runs_at_the_end_runs(tmp_path: Path) -> None:
    script = """
import atexit, logging, multiprocessing, tempfile, threading, time
def later(text): time.sleep(0.2); print(text, flush=True)
if __name__ == "__main__":
    folder = tempfile.TemporaryDirectory(); print(folder.name)
    atexit.register(print, "handler")
    multiprocessing.Process(target=later, args=("process",)).start()
    threading.Thread(target=later, args=("thread",)).start()
"""
    outcome = train(tmp_path, script)
    folder, *rest = (line.removeprefix("[0] ") for line in outcome.out.splitlines())
    assert sorted(rest) == ["handler", "process", "thread"]
    assert not Path(folder).exists()


def test_loaders_may_have_processes(tmp_path: Path) -> None:
    script = TRAIN.replace("shuffle=True", "shuffle=True, num_workers=1")
    outcome = train(tmp_path, script, "--workers", "2", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["samples"] == 48
    assert outcome.checksum == train(tmp_path, TRAIN, "--workers", "2").checksum


def test_workers_that_make_fewer_steps_are_named(tmp_path: Path) -> None:
    script = TRAIN.replace("        run.log", "        if run.rank == 1 and epoch == 1: break\n        run.log")
    outcome = train(tmp_path, script, "--workers", "2")
    assert outcome.code == 1
    assert "PeerLost: worker 0 waits for worker 1, which has ended" in outcome.err
    assert "all workers must make the same number of steps" in outcome.err


FOREVER = (
    TRAIN.replace("range(2)", "range(10**9)")
    .replace("run.epochs(2)", "run.epochs(10**9)")
    .replace("        run.log(loss=loss)", "        run.log(loss=loss)\n        open(f'ready-{run.rank}', 'w').close()")
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_keeps_its_record(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "script.py").write_text(FOREVER)
    running = command(tmp_path, "run", "--workers", "2", "--json", "script.py")
    assert soon(60, lambda: (tmp_path / "ready-0").exists() and (tmp_path / "ready-1").exists())
    os.kill(running.pid, number)
    outcome = running.wait(30)
    assert outcome.code == outcome.json["exit"] == 130
    assert outcome.json["steps"] >= 1
    assert re.search(r"^shoal: interrupted after \d+ steps; the record is in runs/\S+\n$", outcome.err, re.MULTILINE)
    assert "Traceback" not in outcome.err


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    stubborn = "import os, signal, time\n[signal.signal(n, signal.SIG_IGN) for n in (2, 15)]\n"
    (tmp_path / "script.py").write_text(stubborn + "open('ready', 'w')\ntime.sleep(600)")

    def body() -> None:
        asked = enumerate(stop_requests.REQUESTS)
        stop_requests.REQUESTS = tuple((60.0 * n, number) for n, (_, number) in asked)  # a first one would wait
        call(["run", "--json", "script.py"])

    running = Forked(tmp_path, body)
    assert soon(60, (tmp_path / "ready").exists)
    os.kill(running.pid, signal.SIGINT)
    assert not soon(0.3, lambda: list(tmp_path.glob("runs/*/summary.json")))
    os.kill(running.pid, signal.SIGINT)
    outcome = running.wait(30)
    assert outcome.code == outcome.json["exit"] == 130


def test_nohup_is_respected(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, time\nopen('ready', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)"
    )

    def body() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        call(["run", "script.py"])

    running = Forked(tmp_path, body)
    assert soon(60, (tmp_path / "ready").exists)
    os.kill(running.pid, signal.SIGHUP)
    (tmp_path / "go").touch()
    assert running.wait().code == 0


def test_workers_do_not_outlive_a_killed_launcher(tmp_path: Path) -> None:
    script = "import os, time\nos.rename(open(f'{os.getpid()}.new', 'w').name, f'{os.getpid()}.pid')\ntime.sleep(600)"
    (tmp_path / "script.py").write_text(script)
    running = command(tmp_path, "run", "--workers", "2", "script.py")
    assert soon(60, lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    workers = [int(path.stem) for path in tmp_path.glob("*.pid")]
    os.kill(running.pid, signal.SIGKILL)
    assert reap(running.pid, 30) == -signal.SIGKILL
    assert all(reap(worker, 30) == -signal.SIGKILL for worker in workers)


def test_nobody_reads_the_output(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import itertools\nfor n in itertools.count(): print(n)")

    def body() -> None:
        read, write = os.pipe()
        os.dup2(write, 1)
        os.close(write)
        os.close(read)
        call(["run", "--workers", "2", "script.py"])

    outcome = Forked(tmp_path, body).wait(60)
    assert outcome.code == 1
    assert "Traceback" not in outcome.err


def test_odd_output_comes_through(tmp_path: Path) -> None:
    script = r"""
import sys
sys.stdout.buffer.write(b"bad \xff byte\n"); sys.stdout.flush()
sys.stdout.write("10 %\r50 %\r100 %\n")
sys.stdout.write("z" * 3_000_000 + "\n")
sys.stderr.write("half a letter: \udc80\n")
sys.stdout.write("no end of line")
"""
    outcome = train(tmp_path, script, "--json")
    lines = outcome.out.splitlines()
    assert lines[:2] == ["[0] bad � byte", "[0] 100 %"]
    assert sum(line.count("z") for line in lines[2:-2]) == 3_000_000
    assert lines[-2] == "[0] no end of line"
    assert "[0] half a letter: \\udc80\n" in outcome.err


@pytest.mark.parametrize("message", ["'y' * 3_000_000", "'\\udc80 half'", "'two\\nlines'"])
def test_odd_errors_come_through(tmp_path: Path, message: str) -> None:
    outcome = train(tmp_path, f"raise ValueError({message})", "--json")
    assert outcome.code == outcome.json["exit"] == 1
    assert "[0] Traceback" in outcome.err
    assert len(outcome.err) < 1_000_000


def test_collective_runs_leave_no_rendezvous(tmp_path: Path) -> None:
    good = train(tmp_path, TRAIN, "--workers", "2", SHOAL_ENGINE="collective")
    assert good.code == 0, good.err
    assert good.checksum == train(tmp_path, TRAIN, "--workers", "2").checksum
    bad = train(
        tmp_path, TRAIN + "\nimport os\nif run.rank: os.kill(os.getpid(), 9)", "-w", "2", SHOAL_ENGINE="collective"
    )
    assert bad.code == 1
    assert not list(tmp_path.glob("runs/*/rendezvous*"))


def test_on_a_terminal_no_line_is_torn(tmp_path: Path) -> None:
    script = "import time\nfor n in range(6):\n    print('line', n, flush=True); time.sleep(0.15)"
    (tmp_path / "script.py").write_text(script)
    pid, terminal = pty.fork()
    if pid == 0:
        words = ["run", "--workers", "2", "--json", "script.py"]
        be_fresh(tmp_path, lambda: call(words), {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"})
    shown = _read_all(terminal).decode()
    assert reap(pid, 60) == 0
    assert "\x1b[" in shown
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    lines = re.split(r"[\r\n]+", plain)
    for rank in range(2):
        assert [line for line in lines if line.startswith(f"[{rank}]")] == [f"[{rank}] line {n}" for n in range(6)]
    assert any("computing" in line or "starting" in line for line in lines)
    assert json.loads(next(line for line in reversed(lines) if line))["exit"] == 0


def _read_all(terminal: int) -> bytes:
    data = b""
    try:
        while piece := os.read(terminal, 1 << 16):
            data += piece
    except OSError:  # Linux says so when the other side is closed
        pass
    os.close(terminal)
    return data


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--bandwidth", "50mbit"], 0, "note: --bandwidth 50mbit has no effect here"),
        (["--bandwidth", "50"], 2, "--bandwidth ($SHOAL_BANDWIDTH): '50' is not a rate; write '100mbit'"),
        (["--bandwidth", "50mbit", "--trusted"], 2, "holds for links only; leave --trusted out"),
        (["--priority", "shortest"], 0, "note: --priority shortest has no effect here"),
        (["--priority", "first"], 2, "--priority ($SHOAL_PRIORITY): 'first' is no priority; write 'shortest'"),
        (["--priority", "shortest", "--trusted"], 2, "holds for links only; leave --trusted out"),
        (["--plan", "order(needed), order(ready)"], 2, "both say what leaves first; keep one"),
        (["--plan", "order(largest)"], 2, "write order(largest, budget=1mb)"),
        (["--share", "2,1,1"], 2, "'balance(2:1:1)' has 3 shares for 2 workers"),
        (["--share", "2,0"], 2, "--share 2,0 is not a share for each worker; write --share 2,1,1"),
        (["--share", "2,1", "--plan", "balance(auto)"], 2, "both say who computes how much; keep one"),
    ],
)
def test_bandwidth_order_and_shares_are_checked_before_anything_starts(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    done = train(tmp_path, TRAIN, "--workers", "2", *words)
    assert done.code == code, done.err
    assert said in done.err
    assert (tmp_path / "runs").exists() == (code == 0)


def test_workers_that_hold_different_parameters_at_the_end_are_named(tmp_path: Path) -> None:
    """In the end too, however short the run was; what a script does with its model after the last step is its own."""
    plain = TRAIN.replace("for epoch in run.epochs(2):", "for epoch in range(2):")
    apart = plain.replace(
        "        optimizer.step()", "        if run.rank == 2: model.bias.data += 1\n        optimizer.step()"
    )
    outcome = train(tmp_path, apart, "--workers", "3", "--json")
    assert outcome.code == outcome.json["exit"] == 1
    assert "worker 2 and worker 0 hold different parameters" in outcome.err
    after = plain + "\nif run.is_main:\n    torch.nn.init.zeros_(model.weight)\n"
    assert train(tmp_path, after, "--workers", "3").code == 0


def test_workers_whose_loop_ended_before_the_others_are_named(tmp_path: Path) -> None:
    """Each decided for itself when to stop, so the others went on alone; nobody would know."""
    goes_on = """
while True:
    model(torch.ones(1, 4) * run.rank).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if ENOUGH: break
"""
    loop = TRAIN[: TRAIN.index("loader =")] + "run.join(model, optimizer)\n" + goes_on
    alone = train(tmp_path, loop.replace("ENOUGH", "run.step == 3 + 2 * run.worker_id"), "--workers", "2")
    assert alone.code == 0, alone.err
    assert "worker 0 ended its script after step 3; the others trained on without it to step 5." in alone.err
    together = train(tmp_path, loop.replace("ENOUGH", "run.mean(run.rank * run.step) > 2"), "--workers", "2")
    assert together.code == 0, together.err
    assert "trained on without" not in together.err
