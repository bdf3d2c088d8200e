"""What `--plan` accepts, and the files it reads."""

import os
from pathlib import Path

import pytest

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.load import MAX_BYTES, load, parse_toml
from shoal.plan.terms import AloneTerm


def test_loads_a_name_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('exchange = "alone"\npace = "every(steps=1)"\nwire = []\nsplit = "replicate"\n')
    assert load("bsp") == load("every") == Plan()
    assert load("alone") == load(str(file)) == Plan(exchange=AloneTerm())


def test_an_empty_file_is_the_default() -> None:
    assert parse_toml("# nothing chosen\n") == Plan()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('exchnage = "alone"', "unknown key 'exchnage'; did you mean 'exchange'?"),
        ("zzz = 1", "unknown key 'zzz'; keys are exchange, pace, wire, split, balance, parts, groups"),
        ("exchange = 1", 'exchange must be a text; write exchange = "allreduce"'),
        ('wire = "alone"', "wire must be a list of texts; write wire = []"),
        ("wire = [1]", "wire must be a list of texts; write wire = []"),
        ('pace = "alone"', "pace: 'alone' says how replicas agree; write it under exchange"),
        ('wire = ["alone"]', "wire: 'alone' says how replicas agree; write it under exchange"),
        (
            'exchange = "alone, every"',
            "exchange holds 2 terms; write one, and the others under their own keys",
        ),
        ('exchange = "alnoe"', "unknown term 'alnoe'; did you mean 'alone'?"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_toml(text)
    assert str(refused.value) == message


@pytest.mark.parametrize("text", ["exchange", "a = \x01", "wire = " + "[" * 20_000, "pace = " + "9" * 5000])
def test_what_is_not_toml_is_refused_on_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="not valid TOML") as refused:
        parse_toml(text)
    assert len(str(refused.value).splitlines()) == 1


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large.toml"
    file.write_text("#".ljust(MAX_BYTES))
    assert load(str(file)) == Plan()
    file.write_text("#".ljust(MAX_BYTES + 1))
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("was read"))
    with pytest.raises(UsageError, match=f"holds {MAX_BYTES + 1} bytes; at most {MAX_BYTES} are read"):
        load(str(file))


def test_unreadable_paths_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'exchange = "\xff"')
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("latin", "folder", "pipe", "missing", "nul\0", "x" * 300):
        with pytest.raises(UsageError) as refused:
            load(str(tmp_path / f"{name}.toml"))
        assert str(refused.value).startswith(f"plan file {str(tmp_path / name)!r}"[:40])
        assert str(refused.value).isprintable()
