"""The soft limit of open descriptors follows the hard one."""

import resource
from pathlib import Path

from forked import Forked

from shoal.core.descriptors import raise_descriptor_limit


def test_the_soft_limit_becomes_the_hard_one(tmp_path: Path) -> None:
    def body() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_descriptor_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)

    outcome = Forked(tmp_path, body).wait()
    assert outcome.code == 0, outcome.err
