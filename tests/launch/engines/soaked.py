"""The cases of engines that take long to start: how they end badly is shown by `make soak PART=engines`."""

from pathlib import Path

import pytest

from shoal.testing import LauncherCase


class SoakedEnds(LauncherCase):
    """`make test` shows that a run starts, survives and ends; the rest is soaked."""

    @pytest.mark.soak("engines")
    def test_an_error_of_the_script_is_told(self, tmp_path: Path) -> None:
        super().test_an_error_of_the_script_is_told(tmp_path)

    @pytest.mark.soak("engines")
    def test_ctrl_c_ends_all_machines(self, tmp_path: Path) -> None:
        super().test_ctrl_c_ends_all_machines(tmp_path)

    @pytest.mark.soak("engines")
    def test_a_machine_is_added_and_removed(self, tmp_path: Path) -> None:
        super().test_a_machine_is_added_and_removed(tmp_path)
