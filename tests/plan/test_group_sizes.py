"""Sizes of groups stand for plans, and plans for sizes: rows 22 and 193 of docs/systems.toml."""

import tomllib
from pathlib import Path

import forked
import pytest

from shoal.core.errors import UsageError
from shoal.plan.group_sizes import GroupSizes, groups_of, plan_of, read_groups, write_groups
from shoal.plan.load import count_workers, load, parse_toml
from shoal.plan.plan import Plan

SINGA = {
    "sandblaster": (GroupSizes(workers_per_group=4, servers_per_group=2), "server(shards=2), every(1)"),
    "allreduce": (GroupSizes(workers_per_group=4, separate=False), "allreduce, every(1)"),
    "downpour": (GroupSizes(worker_groups=4, servers_per_group=2), "server(shards=2), async"),
    "hogwild": (GroupSizes(worker_groups=4, server_groups=4, separate=False), "shared, every(1)"),
}


@pytest.mark.parametrize("name", SINGA)
def test_group_sizes_configure_every_topology_and_come_back(name: str) -> None:
    sizes, text = SINGA[name]
    plan = parse_toml(write_groups(sizes))
    assert plan == plan_of(sizes) == Plan.parse(text)
    assert groups_of(plan, sizes.workers) == sizes


def test_a_plan_file_may_add_codecs_to_its_groups() -> None:
    plan = parse_toml('wire = ["fp16"]\n[groups]\nworkers_per_group = 2\nseparate = false\n')
    assert plan == Plan.parse("allreduce, every(1), fp16")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"workers": 4}, "groups: Object contains unknown field `workers`; its keys are worker_groups, workers_per"),
        ({"servers_per_group": 0}, "groups: Expected `int` >= 1 - at `$.servers_per_group`; its keys are"),
        ({"worker_groups": 2, "workers_per_group": 2}, "write worker_groups = 4, workers_per_group = 1"),
        ({"worker_groups": 4, "server_groups": 2}, "groups: 2 groups of servers for 4 of workers; write"),
    ],
)
def test_sizes_that_stand_for_no_plan_are_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan_of(read_groups(table))
    assert message in str(refused.value)


def test_a_plan_without_sizes_is_refused() -> None:
    with pytest.raises(UsageError, match="has no sizes of groups; those of Sandblaster"):
        groups_of(Plan.parse("allreduce, local(8)"), 4)


def test_groups_and_an_exchange_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="groups and exchange both say how workers agree"):
        parse_toml('exchange = "alone"\n[groups]\nworkers_per_group = 2\n')


def test_the_file_says_how_many_workers(tmp_path: Path) -> None:
    file = tmp_path / "singa.toml"
    file.write_text(write_groups(SINGA["downpour"][0]))
    assert count_workers(str(file)) == 4
    assert count_workers("downpour") is None
    assert load(str(file)) == Plan.parse("server(shards=2), async")


def test_the_command_prints_sizes_that_a_run_takes(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    printed = forked.refused(tmp_path, "plan", "groups", "sandblaster", "--workers", "2")
    assert tomllib.loads(printed.out)["groups"]["workers_per_group"] == 2
    (tmp_path / "singa.toml").write_text(printed.out)
    refused = forked.refused(tmp_path, "run", "--workers", "3", "--plan", "singa.toml", "train.py")
    assert refused.code == 2
    assert "--workers 3 and groups of 2 workers in singa.toml; keep one" in refused.err
