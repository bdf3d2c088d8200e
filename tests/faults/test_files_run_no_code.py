"""A6: files that want to run code, fed to everything that reads one. A15: secrets are not written down."""

import bz2
import gzip
import io
import itertools
import lzma
import marshal
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import command, soon
from scripts import script, shoal
from strangers import heard, stranger
from test_crash_at_every_write import checkpoint
from test_endpoint_refuses_strangers import RUN, trained

from shoal.core.errors import ShoalError, UsageError
from shoal.core.ledger import ledger_file, read_ledger
from shoal.core.log import read_log
from shoal.membership.envelope import LARGEST_REPORT, MessageEnvelope
from shoal.membership.protocol import JoinRequest
from shoal.train.checkpoint.legacy import convert
from shoal.train.checkpoint.manifest import CheckpointDamaged, folder_of, newest, verify
from shoal.train.checkpoint.shard import parse
from shoal.train.checkpoint.writer import clear
from shoal.transport.keys import CurveKeyPair
from shoal.transport.messages import FrameRefused, decode


class Gadget:
    """Runs something when it is unpickled."""

    def __init__(self, call: Callable[..., object], *args: object) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> tuple[object, ...]:
        return self.call, self.args


def evils(canary: Path) -> list[Gadget]:
    """Each way makes the file `canary`."""
    code = f"open({str(canary)!r}, 'w')"
    return [
        Gadget(os.system, f"touch {canary}"),
        Gadget(eval, code),
        Gadget(exec, code),
        Gadget(open, str(canary), "w"),
    ]


def packed(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def zipped(**members: bytes) -> bytes:
    def write(buffer: io.BytesIO) -> None:
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, data in members.items():
                archive.writestr(f"archive/{name.replace('__', '.')}", data)

    return packed(write)


def gadgets(canary: Path) -> dict[str, bytes]:
    """Files that execute when a careless reader opens them."""
    first, command = evils(canary)[0], f"touch {canary}"
    found = {f"pickle {p} of {e.call.__name__}": pickle.dumps(e, p) for p in range(6) for e in evils(canary)}
    states = {"alone": first, "in a state": {"weight": torch.ones(2), "x": first}, "in a list": [first]}
    for (name, value), new in itertools.product(states.items(), (True, False)):
        data = packed(partial(torch.save, value, _use_new_zipfile_serialization=new))
        found[f"torch.save {name} {'zip' if new else 'legacy'}"] = data
    whole = pickle.dumps(first)
    objects = np.array([first], dtype=object)
    found |= {
        "npy of objects": packed(lambda file: np.save(file, objects, allow_pickle=True)),
        "npz of objects": packed(lambda file: np.savez(file, objects)),
        "zip": zipped(data__pkl=whole, version=b"3", code=b"import os"),
        "zip without a version": zipped(data__pkl=whole),
        "torchscript": zipped(constants__pkl=whole, data__pkl=whole, version=b"3", code__py=command.encode()),
        "marshal": marshal.dumps(compile(f"import os; os.system({command!r})", "", "exec")),
        "joblib's header": b"\x80\x04\x95" + whole,
    }
    for name, squeeze in {
        "gzip": gzip.compress,
        "bzip2": bz2.compress,
        "xz": lzma.compress,
        "zlib": zlib.compress,
    }.items():
        found[f"{name} of a pickle"] = squeeze(whole)
    for kind in ("os.system", "subprocess.call", "builtins.eval", "builtins.exec"):
        found[f"yaml of {kind}"] = f"!!python/object/apply:{kind} ['{command}']".encode()
        found[f"json of {kind}"] = f'{{"py/reduce": [{{"py/function": "{kind}"}}, ["{command}"]]}}'.encode()
    header = f'{{"__metadata__": {{"x": "$({command})"}}}}'.encode()
    found["safetensors with a command"] = len(header).to_bytes(8, "little") + header
    assert len(found) >= 50
    return found


def test_a6_no_reader_runs_what_stands_in_a_file(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    clear(tmp_path, 0)
    checkpoint(tmp_path, 1)
    checkpoint(tmp_path, 2)
    for name, data in gadgets(canary).items():
        for path in list(folder_of(tmp_path, 2).iterdir()):
            whole = path.read_bytes()
            path.write_bytes(data)
            with pytest.raises(CheckpointDamaged):
                verify(folder_of(tmp_path, 2))
            assert newest(tmp_path, "one")[0] == folder_of(tmp_path, 1), name
            path.write_bytes(whole)
        ledger_file(tmp_path).write_bytes(data)
        assert list(read_ledger(tmp_path)) == list(read_log(ledger_file(tmp_path))) == [], name
        if "safetensors" not in name:
            with pytest.raises(ShoalError):
                parse(data)
        assert not canary.exists(), name


def test_a6_no_door_runs_what_comes(tmp_path: Path) -> None:
    """Under a member's own key, so that it comes as far as a decoder; on links too."""
    canary = tmp_path / "canary"
    with trained(tmp_path) as (place, _), stranger(place.handle.address, place.key) as other:
        for data in gadgets(canary).values():
            if len(data) <= LARGEST_REPORT:  # what is longer ends the connection
                other.say(data)
                other.say(MessageEnvelope(RUN).seal(JoinRequest(member="m9"))[0], data)
            with pytest.raises(FrameRefused):
                decode(data)
        heard(other, RUN)
    assert not canary.exists()


def test_a6_importing_runs_nothing(tmp_path: Path) -> None:
    canary, source, target = tmp_path / "canary", tmp_path / "file.pt", tmp_path / "out.safetensors"
    for name, data in gadgets(canary).items():
        source.write_bytes(data)
        with pytest.raises(UsageError, match=r"file\.pt is refused"):
            convert(source, target)
        assert not canary.exists(), name
    source.write_bytes(gadgets(canary)["torch.save in a state zip"])
    outcome = shoal(tmp_path, "import", "file.pt", "out.safetensors")
    assert outcome.code == 2
    assert "file.pt is refused" in outcome.err, outcome.err
    assert not canary.exists()
    assert not target.exists()


def test_a6_shoal_import_reads_honest_files(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    torch.save({"model": model.state_dict(), "epoch": 3}, tmp_path / "file.pt")
    outcome = shoal(tmp_path, "import", "file.pt", "out.safetensors")
    assert outcome.code == 0, outcome.err
    tensors, _ = parse((tmp_path / "out.safetensors").read_bytes())
    assert all(torch.equal(tensors[f"model.{name}"], value) for name, value in model.state_dict().items())
    again = shoal(tmp_path, "import", "file.pt", "out.safetensors")
    assert (again.code, "is there already" in again.err) == (2, True)
    assert shoal(tmp_path, "import", "nothing.pt", "new.safetensors").code == 2


def test_a15_secrets_of_the_environment_are_not_written_down(tmp_path: Path) -> None:
    secrets = {"AWS_SECRET_ACCESS_KEY": "canary-4f1d", "HF_TOKEN": "canary-77aa", "DATABASE_URL": "pg://u:canary-9c@h"}
    script(tmp_path, samples=32, epochs=2)
    outcome = shoal(
        tmp_path, "run", "--name", "one", "--workers", "2", "--checkpoint", "2steps", "script.py", **secrets
    )
    assert outcome.code == 0, outcome.err
    again = shoal(tmp_path, "run", "--resume", "one", **secrets)
    shown = shoal(tmp_path, "show", "one", "--json", **secrets)
    for text in (outcome.out, outcome.err, again.out, again.err, shown.out):
        assert "canary" not in text
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert len(files) >= 8
    for path in files:
        assert b"canary" not in path.read_bytes(), path


TELL = """
for what in ("environ", "cmdline"):
    open(f"{what}-{run.rank}", "wb").write(open(f"/proc/self/{what}", "rb").read())
while not os.path.exists("go"):
    time.sleep(0.05)
"""


def test_a15_the_key_of_a_run_is_in_its_file_alone(tmp_path: Path) -> None:
    """Not in the environment or the arguments of its workers, not in the record, not in what is printed."""
    keys = CurveKeyPair.new()
    keys.write(tmp_path / "key")
    script(tmp_path, samples=32, epochs=1)
    with (tmp_path / "script.py").open("a") as file:
        file.write(TELL)
    words = ("run", "--listen", "127.0.0.1:0", "--key", "key", "--name", "one", "--workers", "2", "script.py")
    running = command(tmp_path, *words)
    assert soon(90.0, lambda: len(list(tmp_path.glob("cmdline-*"))) == 2), running.err.read_text()
    (tmp_path / "ps").write_text(shoal(tmp_path, "ps").out + shoal(tmp_path, "ps", "--json").out)
    (tmp_path / "go").touch()
    outcome = running.wait(90.0)
    assert outcome.code == 0, outcome.err
    (tmp_path / "show").write_text(shoal(tmp_path, "show", "one", "--json").out)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "key"]
    assert len(files) >= 15
    assert [path for path in files if keys.secret in path.read_bytes()] == []
