"""The user's private folder: where it is, and when it is not private."""

import os
from pathlib import Path

import pytest

from shoal.core.errors import UsageError
from shoal.core.private import open_private, private_folder, private_subfolder


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


def test_a_subfolder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = private_subfolder(tmp_path / "a", "b", "c")
    assert folder == private_subfolder(tmp_path / "a", "b", "c") == tmp_path / "a" / "b" / "c"
    for path in (folder, folder.parent, folder.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("at", ["", "a", "a/b", "a/b/c"])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_folder_that_others_could_write_or_exchange_is_refused(
    tmp_path: Path, at: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_subfolder(tmp_path / "a", "b", "c")
    (tmp_path / at).chmod(mode)
    monkeypatch.setattr("shoal.core.private._alone_in_group", lambda gid: False)
    with pytest.raises(UsageError, match=rf"'{(tmp_path / at)}' can be written by others \(mode {mode:o}\)"):
        private_subfolder(tmp_path / "a", "b", "c")


def test_a_group_of_this_user_alone_may_write_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o775)
    monkeypatch.setattr("shoal.core.private._alone_in_group", lambda gid: True)
    assert private_subfolder(tmp_path / "a", "b").is_dir()


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(tmp_path / "a", 1234, 1234)
    else:  # only root can give a folder away, so become another user instead
        monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(UsageError, match="belongs to user"):
        private_subfolder(tmp_path / "a", "b")
    assert not (tmp_path / "a" / "b").exists()


def test_a_link_is_followed_once_and_what_it_leads_to_is_checked(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert private_subfolder(tmp_path / "link", "b") == tmp_path / "real" / "b"
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(UsageError, match="can be written by others"):
        private_subfolder(tmp_path / "link", "b")


def test_a_leaf_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    with pytest.raises(UsageError, match="can be entered by others"):
        private_subfolder(tmp_path, "a")
