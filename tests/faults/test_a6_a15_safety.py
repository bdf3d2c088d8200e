"""A6: files that want to run code, fed to everything that reads one. A15: secrets are not written down."""

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from scripts import script, shoal
from test_s1_crash import checkpoint

from shoal.core.errors import ShoalError, UsageError
from shoal.core.ledger import ledger_file, read_ledger
from shoal.core.log import read_log
from shoal.train.checkpoint.legacy import convert
from shoal.train.checkpoint.manifest import Damaged, folder_of, newest, verify
from shoal.train.checkpoint.shard import parse
from shoal.train.checkpoint.writer import clear


class Gadget:
    """Runs a command when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.canary}",)


def gadgets(canary: Path) -> dict[str, bytes]:
    """Files that execute when a careless reader opens them."""
    evil = Gadget(canary)
    found = {f"pickle protocol {p}": pickle.dumps(evil, protocol=p) for p in range(6)}
    for name, value in {"alone": evil, "in a state": {"weight": torch.ones(2), "x": evil}, "in a list": [evil]}.items():
        for zipped in (True, False):
            buffer = io.BytesIO()
            torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
            found[f"torch.save {name} {'zip' if zipped else 'legacy'}"] = buffer.getvalue()
    buffer = io.BytesIO()
    np.save(buffer, np.array([evil], dtype=object), allow_pickle=True)
    found["npy of objects"] = buffer.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(evil))
        archive.writestr("archive/version", "3")
        archive.writestr("archive/code/__torch__.py", "import os")
    found["zip"] = buffer.getvalue()
    found["yaml"] = f"!!python/object/apply:os.system ['touch {canary}']".encode()
    found["json with a type"] = f'{{"py/reduce": [{{"py/function": "os.system"}}, ["touch {canary}"]]}}'.encode()
    header = f'{{"__metadata__": {{"x": "$(touch {canary})"}}}}'.encode()
    found["safetensors with a command"] = len(header).to_bytes(8, "little") + header
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
            with pytest.raises(Damaged):
                verify(folder_of(tmp_path, 2))
            assert newest(tmp_path, "one")[0] == folder_of(tmp_path, 1), name
            path.write_bytes(whole)
        ledger_file(tmp_path).write_bytes(data)
        assert list(read_ledger(tmp_path)) == list(read_log(ledger_file(tmp_path))) == [], name
        if "safetensors" not in name:
            with pytest.raises(ShoalError):
                parse(data)
        assert not canary.exists(), name


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
