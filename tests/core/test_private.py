"""The user's private folder: where it is, and when it is not private."""

import os
from pathlib import Path

import pytest

from shoal.core.errors import UsageError
from shoal.core.private import open_private, private_folder


def test_it_is_made_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert open_private() == open_private() == tmp_path / "shoal"
    assert (tmp_path / "shoal").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("given", ["", "relative", "/nonexistent/place"])
def test_without_a_runtime_folder_it_has_the_users_number(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", given)
    assert private_folder().name == f"shoal-{os.geteuid()}"


def test_what_others_could_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "shoal").mkdir(mode=0o755)
    with pytest.raises(UsageError, match="is not yours alone"):
        open_private()
    (tmp_path / "shoal").rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "shoal").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is not yours alone"):
        open_private()
    (tmp_path / "shoal").unlink()
    (tmp_path / "shoal").touch()
    with pytest.raises(UsageError):
        open_private()
