"""The soft limit of open descriptors follows the hard one."""

import resource
from pathlib import Path

from forked import Forked, _command

from shoal.core.descriptors import raise_descriptor_limit


def test_the_soft_limit_becomes_the_hard_one(tmp_path: Path) -> None:
    def body() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_descriptor_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)

    outcome = Forked(tmp_path, body).wait()
    assert outcome.code == 0, outcome.err


def test_workers_of_a_run_have_the_hard_one_too(tmp_path: Path) -> None:
    """They are forked from the launcher, and so is the coordinator."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    (tmp_path / "script.py").write_text("import resource\nprint('limits', *resource.getrlimit(resource.RLIMIT_NOFILE))")

    def body() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        _command(["run", "script.py"])

    outcome = Forked(tmp_path, body).wait()
    assert f"limits {hard} {hard}" in outcome.out, outcome.err
