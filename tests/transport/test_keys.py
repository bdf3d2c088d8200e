"""Keys: secret from the first moment to the last."""

import os
from pathlib import Path

import forked
import pytest

from shoal.core.errors import UsageError
from shoal.transport.keys import CurveKeyPair, check_key


def test_what_is_written_is_read(tmp_path: Path) -> None:
    keys = CurveKeyPair.new()
    keys.write(tmp_path / "keys")
    assert CurveKeyPair.read(tmp_path / "keys") == keys
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
    assert keys.secret.decode() not in repr(keys)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622, 0o777])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    CurveKeyPair.new().write(tmp_path / "keys")
    (tmp_path / "keys").chmod(mode)
    with pytest.raises(UsageError, match="can be read by others"):
        CurveKeyPair.read(tmp_path / "keys")


@pytest.mark.parametrize("text", ["", "public = 3", 'public = "a"\nsecret = "b"', "\0\1\2", "x" * 9000])
def test_what_is_no_key_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="no key file"):
        CurveKeyPair.read(path)


def test_a_link_elsewhere_is_not_followed(tmp_path: Path) -> None:
    CurveKeyPair.new().write(tmp_path / "keys")
    os.symlink(tmp_path / "keys", tmp_path / "link")
    os.symlink(tmp_path / "nowhere", tmp_path / "dangling")
    with pytest.raises(UsageError, match="cannot read"):
        CurveKeyPair.read(tmp_path / "link")
    with pytest.raises(UsageError):
        CurveKeyPair.new().write(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()


def test_keys_have_one_shape() -> None:
    assert check_key(CurveKeyPair.new().public)
    for bad in (b"", b"x" * 39, b"x" * 41, b"\n" * 40):
        with pytest.raises(UsageError):
            check_key(bad)


def test_the_command_tells_where_and_never_what(tmp_path: Path) -> None:
    done = forked.shoal(tmp_path, "keys", "new", "mine.toml")
    keys = CurveKeyPair.read(tmp_path / "mine.toml")
    assert (done.code, done.err) == (0, "")
    assert "mine.toml" in done.out
    assert keys.public.decode() in done.out
    assert keys.secret.decode() not in done.out
    again = forked.shoal(tmp_path, "keys", "new", "mine.toml")
    assert again.code == 2
    assert "exists already" in again.err
    home = forked.shoal(tmp_path, "keys", "new", HOME=str(tmp_path))
    assert home.code == 0
    assert CurveKeyPair.read(tmp_path / ".config/shoal/keys.toml").public.decode() in home.out
