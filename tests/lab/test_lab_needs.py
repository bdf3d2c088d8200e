"""What a lab needs, and how it says what is missing."""

from pathlib import Path

import pytest

from shoal.core.errors import ShoalError, UsageError
from shoal.lab import needs, switch


def test_everything_that_is_missing_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(needs, "TUN", str(tmp_path / "tun"))
    monkeypatch.setattr(needs, "_may", lambda *_: False)
    found = " | ".join(needs.missing())
    for word in ("sudo", "apt-get install iproute2", "apt-get install gcc", "modprobe tun"):
        assert word in found
    with pytest.raises(UsageError, match="a lab cannot run here: it needs root"):
        needs.require()


@pytest.mark.skipif(switch.compiler() is None, reason="no C compiler: apt-get install gcc")
def test_the_switch_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = switch.program()
    assert path.parent == tmp_path / "shoal" / "lab"
    monkeypatch.setenv("PATH", "")
    assert switch.program() == path
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_switch_is_not_taken_from_a_folder_that_others_can_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planted = switch.compiled()
    planted.touch()
    tmp_path.chmod(0o777)
    switch._folder.cache_clear()
    path = switch.compiled()
    assert not path.is_relative_to(tmp_path)
    assert (path.parent.stat().st_mode & 0o777, list(path.parent.iterdir())) == (0o700, [])
    assert f"{str(tmp_path)!r} can be written by others" in capsys.readouterr().err
    switch._folder.cache_clear()


def test_a_compiler_that_fails_is_told_on_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(switch, "compiler", lambda: "/bin/false")
    with pytest.raises(ShoalError, match=r"cannot compile the lab's switch.*install libc6-dev"):
        switch.program()
