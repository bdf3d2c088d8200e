"""`cluster.toml`: what one command writes another reads, or refuses on one line."""

from pathlib import Path

import pytest

from shoal.core.errors import UsageError
from shoal.groups.cluster_file import ClusterMeasurement, LinkMeasurement, SpeedMeasurement, as_toml, read_cluster

WORKERS = [SpeedMeasurement(rank, f'the "host" {rank}', f"10.0.0.{rank}", 80.5, 2) for rank in range(3)]
LINKS = [LinkMeasurement(a, b, 1.5 + a, 100.25 * (b + 1)) for a in range(3) for b in range(3) if a != b]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    for cluster in (ClusterMeasurement(WORKERS, LINKS), ClusterMeasurement(WORKERS[:1], [])):
        file.write_text(as_toml(cluster))
        assert read_cluster(file) == cluster


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (as_toml(ClusterMeasurement(WORKERS, LINKS[1:])), "does not hold every link"),
        (as_toml(ClusterMeasurement(WORKERS[1:], LINKS)), "does not hold every link"),
        (
            as_toml(ClusterMeasurement(WORKERS, [LinkMeasurement(0, 1, 1.0, 0.0), *LINKS[1:]])),
            "does not hold every link",
        ),
        (as_toml(ClusterMeasurement(WORKERS, LINKS)).replace("rtt_ms", "rtt"), "is no cluster"),
        ("worker = 3", "is no cluster"),
        ("[[worker", "is no cluster"),
        ("", "is no cluster"),
    ],
)
def test_what_is_no_cluster_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=said) as refused:
        read_cluster(file)
    assert "shoal probe" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No such file .*; write it with shoal probe"):
        read_cluster(tmp_path / "gone.toml")
