"""`sql` and `query` answer in terms of the documented schema, and can change nothing."""

from pathlib import Path

import pytest
from test_registry import weights

from shoal.core.errors import UsageError
from shoal.models import Lineage, Registry
from shoal.models.queries import query, select


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    registry = Registry(tmp_path_factory.mktemp("models"))
    for seed, (accuracy, plan) in enumerate([(0.95, "dgc(0.01)"), (0.98, "dgc(0.001)"), (0.99, "allreduce")]):
        lineage = Lineage(plan=plan, data="tensors:12", run=f"run-{seed}")
        metrics = {"accuracy": accuracy, "name": 1.0, "odd name": 2.0}
        registry.add("digits", weights(seed, 8 + seed), lineage=lineage, metrics=metrics)
    registry.tag("digits:2", "prod")
    return registry


def refs(answer: tuple[list[str], list[tuple[object, ...]]]) -> list[object]:
    return [row[answer[0].index("ref")] for row in answer[1]]


def test_metrics_are_columns(registry: Registry) -> None:
    assert refs(query(registry, "where accuracy > 0.97 and plan like '%dgc%' order by bytes")) == ["digits:2"]
    assert refs(query(registry, "accuracy > 0.97 order by bytes desc")) == ["digits:3", "digits:2"]
    assert refs(query(registry, "")) == ["digits:1", "digits:2", "digits:3"]
    assert refs(query(registry, "where aliases = 'prod'")) == ["digits:2"]


def test_the_best_model_with_its_data_plan_and_metrics(registry: Registry) -> None:
    sql = "select ref, data, plan, accuracy, run from versions order by accuracy desc limit 1"
    assert select(registry, sql) == (
        ["ref", "data", "plan", "accuracy", "run"],
        [("digits:3", "tensors:12", "allreduce", 0.99, "run-2")],
    )


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("delete from versions", "only reading is allowed"),
        ("drop table main.versions", "only reading is allowed"),
        ("insert into names values ('x', 1)", "only reading is allowed"),
        ("attach '/tmp/x.db' as x", "only reading is allowed"),
        ("pragma user_version = 9", "only reading is allowed"),
        ("select load_extension('x')", "only reading is allowed"),
        ("select 1; select 2", "one statement"),
        ("select absent from versions", "shows the columns"),
        ("selec", "syntax error"),
        ("", "asks nothing"),
        ("select zeroblob(1000000000)", "too big"),
    ],
)
def test_all_but_reading_is_refused(registry: Registry, sql: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select(registry, sql)
    assert len(registry.list()) == 3


def test_a_query_without_end_is_stopped(registry: Registry) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    with pytest.raises(UsageError, match="was stopped"):
        select(registry, endless, seconds=0.05)


def test_a_query_is_no_statement(registry: Registry) -> None:
    with pytest.raises(UsageError, match="shoal models sql"):
        query(registry, "select 1")


def test_without_a_registry_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no registry in"):
        query(Registry(tmp_path / "none"), "")
