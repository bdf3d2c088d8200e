"""Clocks of hosts: one for all workers of a host, which nobody else can move."""

import pytest

from shoal.core.errors import PayloadError
from shoal.launch.service_channel import ServiceView
from shoal.membership.protocol import MemberInfo
from shoal.sync.server.clock_names import ClockNames

HOSTS = {"w0.0": "a", "w1.0": "a", "w2.0": "b"}


def test_a_clock_keeps_its_name_when_its_first_worker_is_lost_and_another_comes() -> None:
    names = ClockNames()
    assert names.follow(["w0.0", "w1.0", "w2.0"], HOSTS) == ["w0.0", "w2.0"]
    assert names.follow(["w1.0", "w2.0"], HOSTS) == ["w0.0", "w2.0"]
    names.begin(["w1.0", "w2.0"])
    assert names.follow(["w0.1", "w1.0", "w2.0"], {**HOSTS, "w0.1": "a"}) == ["w0.0", "w2.0"]


def test_nobody_pushes_for_the_workers_of_another_host() -> None:
    names = ClockNames()
    names.follow(list(HOSTS), HOSTS)
    names.check("w1.0", ["w0.0", "w1.0"])
    with pytest.raises(PayloadError, match=r"w2\.0 pushes a change of w1\.0, which is not on its host"):
        names.check("w2.0", ["w2.0", "w1.0"])


def test_a_host_is_waited_for_until_all_of_it_have_left_the_round() -> None:
    names = ClockNames()
    names.follow(list(HOSTS), HOSTS)
    names.leave("w0.0")
    assert names.all_left(HOSTS) == set()
    assert names.all_left(["w0.0", "w2.0"]) == {"w0.0"}, "the one that had not left is lost"
    names.leave("w1.0")
    assert names.all_left(HOSTS) == {"w0.0"}


def test_a_worker_of_another_machine_is_never_on_the_host_of_the_runs_own() -> None:
    own, liar = MemberInfo(host_group="a"), MemberInfo(host_group="a", remote=True)
    hosts = ServiceView(1, ("w0.0", "w1.0", "w2.0"), (own, liar, MemberInfo())).hosts
    assert hosts["w0.0"] != hosts["w1.0"]
    assert hosts["w2.0"] == "w2.0"
