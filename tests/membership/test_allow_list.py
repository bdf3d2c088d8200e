"""Invitations: a pair of its own for every machine, listed beside the key of the run, whose secret stays there."""

from pathlib import Path

import forked
import pytest

from shoal.core.errors import UsageError
from shoal.membership.allow_list import AllowList, allow_file, invite, read_allowed
from shoal.transport.keys import CurveKeyPair, KeyFile


@pytest.fixture
def run_key(tmp_path: Path) -> Path:
    CurveKeyPair.new().write(tmp_path / "run.key")
    return tmp_path / "run.key"


def test_an_invitation_holds_no_secret_of_the_run(run_key: Path, tmp_path: Path) -> None:
    run = CurveKeyPair.read(run_key)
    made = [invite(run_key, tmp_path / f"{n}.key", workers=n + 1) for n in range(3)]
    assert [KeyFile.read(tmp_path / f"{n}.key") for n in range(3)] == made
    assert {each.run for each in made} == {run.public}
    assert len({run.public, *(each.keys.public for each in made)}) == 4, "each has a pair of its own"
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        assert path == run_key or run.secret not in path.read_bytes()
    assert read_allowed(allow_file(run_key)) == {each.keys.public: n + 1 for n, each in enumerate(made)}


def test_invitations_come_and_go_while_the_run_trains(run_key: Path, tmp_path: Path) -> None:
    machine = CurveKeyPair.new().public
    allowed = AllowList({machine: 2}, allow_file(run_key))
    assert dict(allowed) == {machine: 2}
    first, second = (invite(run_key, tmp_path / name).keys.public for name in ("a", "b"))
    allowed.refresh()
    assert dict(allowed) == {machine: 2, first: 1, second: 1}
    lines = allow_file(run_key).read_text().splitlines(keepends=True)
    allow_file(run_key).write_text(lines[1])
    allowed.refresh()
    assert dict(allowed) == {machine: 2, second: 1}
    allow_file(run_key).unlink()
    allowed.refresh()
    assert dict(allowed) == {machine: 2}


def test_a_list_that_cannot_be_believed_is_refused_and_changes_nothing(run_key: Path, tmp_path: Path) -> None:
    public = invite(run_key, tmp_path / "a").keys.public
    file = allow_file(run_key)
    allowed = AllowList({}, file)
    good = file.read_text()
    for text, told in (
        (f"{good}nonsense\n", "line 2 of .*is no key"),
        (good.replace("=1", "=0"), "=K for K workers"),
        (good * 30_000, "has more than 1048576 bytes"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=told):
            AllowList({}, file)
        allowed.refresh()
        assert dict(allowed) == {public: 1}
    file.write_text(good)
    file.chmod(0o622)
    with pytest.raises(UsageError, match="others"):
        AllowList({}, file)


def test_the_command_says_what_to_do_with_it(tmp_path: Path) -> None:
    assert forked.shoal(tmp_path, "keys", "new", "run.key").code == 0
    done = forked.shoal(tmp_path, "keys", "invite", "run.key", "-o", "laptop.key", "--workers", "2")
    assert (done.code, done.err) == (0, "")
    assert "shoal join HOST:PORT --key laptop.key" in done.out
    assert "2 workers of one machine" in done.out
    assert KeyFile.read(tmp_path / "laptop.key").keys.secret.decode() not in done.out
    for words, told in (
        (("run.key", "-o", "laptop.key"), "exists already"),
        (("nothing", "-o", "b.key"), "cannot read the keys"),
        (("laptop.key", "-o", "b.key"), "is an invitation to join another machine's run"),
    ):
        refused = forked.shoal(tmp_path, "keys", "invite", *words)
        assert refused.code == 2
        assert told in refused.err
    assert len(read_allowed(tmp_path / "run.key.allow")) == 1
    assert not (tmp_path / "b.key").exists()
