"""`server(auto)`: how it is written, how many servers it has, and what it goes with."""

import pytest

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.rules import check
from shoal.plan.server import ServerTerm
from shoal.train.servers import count_tuned_servers, plan_services, write_servers


@pytest.mark.parametrize(
    ("text", "servers"),
    [("server", 1), ("server(shards=3)", 3), ("server(auto)", 1), ("server(auto, replicas=2, now=4)", 4)],
)
def test_it_is_written_as_it_is_read_and_has_so_many_servers(text: str, servers: int) -> None:
    plan = Plan.parse(text)
    assert str(plan.exchange) == text
    assert len(plan_services(plan, 2)) == servers
    assert count_tuned_servers(str(plan)) == (servers if "auto" in text else 0)


def test_another_number_leaves_the_rest() -> None:
    text = str(Plan.parse("server(auto, now=4), stale(2, round=5), topk(0.1)"))
    assert write_servers(text, 2) == text.replace("now=4", "now=2")


@pytest.mark.parametrize("pace", ["async", "stale(2, samples=leased)", "local(4)"])
def test_another_number_is_a_switch_which_all_paces_allow_but_a_deadline(pace: str) -> None:
    assert check(Plan.parse(f"server(auto), {pace}"), 2) == []
    with pytest.raises(UsageError, match="a deadline needs one server; write server"):
        check(Plan.parse("server(auto), deadline(0.5)"), 2)


def test_now_is_of_auto_alone() -> None:
    with pytest.raises(UsageError, match=r"write server\(3\)"):
        ServerTerm(2, now=3)
    with pytest.raises(UsageError, match="now=65"):
        ServerTerm("auto", now=65)
