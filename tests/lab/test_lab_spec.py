"""Labs as text and as TOML: what is read, what is refused, and that writing is the inverse of reading."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import specs

from shoal.core.errors import UsageError
from shoal.core.units import BitRate, TimeSpan
from shoal.lab.actions import ChangeLinks, CutLinks, PartitionHosts, SilenceLinks, StallLinks
from shoal.lab.load import load, parse_lab, write_lab
from shoal.lab.spec import LabSpec

FILE = """
hosts = 4
rate = "100mbit"
delay = "20ms"
compute = "replay"
[host.2]
rate = "10mbit"
loss = "0.5%"
speed = 0.25
burst = 8
[[event]]
at = "30s"
cut = 2
for = "10s"
[[event]]
at = "step 200"
host = 1
rate = "5mbit"
[[event]]
at = "40s"
partition = [[0, 1], [3, 2]]
[[event]]
at = "50s"
cut_from = [1]
cut_to = [2]
[[event]]
at = "60s"
host = [0]
stall = true
for = "500ms"
chance = 0.5
"""


@settings(max_examples=60, deadline=None)
@given(specs())
def test_a_lab_is_what_its_text_says(spec: LabSpec) -> None:
    assert parse_lab(write_lab(spec)) == spec
    assert write_lab(parse_lab(write_lab(spec))) == write_lab(spec)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60) | st.from_regex(r"\d+ hosts(, [\w.% ]+)*", fullmatch=True))
def test_any_text_is_a_lab_or_is_refused_on_one_line(text: str) -> None:
    complaint = ""
    try:
        parse_lab(text)
    except UsageError as error:
        complaint = str(error)
    assert "\n" not in complaint


def test_the_short_text() -> None:
    spec = parse_lab("4 hosts, 100Mbit, 20 ms, 5ms jitter, 0.5% loss, burst 8, seed 3")
    link = spec.hosts[3].link
    assert (spec.size, link.rate, link.delay, link.jitter) == (4, BitRate(10**8), TimeSpan.of(0.02), TimeSpan.of(0.005))
    assert (link.loss, link.burst, spec.seed) == (0.005, 8, 3)
    assert write_lab(spec) == "4 hosts, 100mbit, 20ms, 5ms jitter, 0.5%, burst 8, seed 3"


def test_the_file(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(FILE)
    spec = load(str(tmp_path / "lab.toml"))
    slow = spec.hosts[2]
    assert (slow.link.rate, slow.link.delay, slow.link.loss, slow.speed) == (
        BitRate(10**7),
        TimeSpan.of(0.02),
        0.005,
        0.25,
    )
    assert spec.hosts[0] == spec.hosts[1] == spec.hosts[3]
    expected = [CutLinks, ChangeLinks, PartitionHosts, SilenceLinks, StallLinks]
    assert [type(event.action) for event in spec.events] == expected
    assert spec.events[0].lasts == TimeSpan.of(10)
    assert spec.events[1].at.step == 200
    assert str(spec.events[2]) == "at 40s: partition 0 1 | 2 3"
    assert parse_lab(write_lab(spec)) == spec


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a part of a lab"),
        ("100mbit", "does not say how many hosts"),
        ("4 hosts, 4 hosts", "a second time"),
        ("0 hosts", "0 hosts are out of range"),
        ("251 hosts", "write 1 to 250"),
        ("999999999 hosts", "write 1 to 250"),
        ("4 hosts, 5ms, 6ms jitter", "jitter 6ms is more than delay 5ms"),
        ("2 hosts, 90%, burst 2", "cannot come in bursts"),
        ("2 hosts, speed 2", "speed 2.0 is out of range"),
        ("hosts = 4\nrat = '1mbit'", "unknown key 'rat'; did you mean 'rate'?"),
        ("hosts = 4\nrate = 100", "100 is not a rate; write '100mbit'"),
        ("hosts = '4'", "hosts must be a whole number"),
        ("rate = '1mbit'", "write hosts = 4"),
        ("hosts = 2\n[host.2]\nspeed = 0.5", "no such host; hosts are 0 to 1"),
        ("hosts = 2\n[host.1]\nspede = 0.5", "host.1: unknown key 'spede'; did you mean 'speed'?"),
        ("hosts = 2\ncompute = 'fake'", "write 'real' or 'replay'"),
        ("hosts = 2\n[[event]]\ncut = 1", "event 0: no 'at'"),
        ("hosts = 2\n[[event]]\nat = '1s'", "event 0: 0 actions"),
        ("hosts = 2\n[[event]]\nat = '1s'\ncut = 1\nkill = 1", "event 0: 2 actions"),
        ("hosts = 2\n[[event]]\nat = '1s'\ncut = 3", "no host 3; hosts are 0 to 1, and 2 is the coordinator's"),
        ("hosts = 2\n[[event]]\nat = '1s'\nkill = 1\nfor = '1s'", "leave 'for' out"),
        ("hosts = 2\n[[event]]\nat = '1s'\nrate = '1mbit'", "say whose"),
        ("hosts = 2\n[[event]]\nat = '1s'\nhost = 1\nstall = true", "a stall needs its length"),
        ("hosts = 2\n[[event]]\nat = '1s'\npartition = [[0], [0]]", "names a host twice"),
        ("hosts = 2\n[[event]]\nat = '1s'\ncut_from = [0]", "both ends"),
        ("hosts = 2\n[[event]]\nat = '1s'\nheal = false", "write heal = true"),
        ("hosts = 2\nx = ", "not valid TOML"),
    ],
)
def test_refused_with_the_way_out(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_lab(text)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"lab file .*nothing.toml': no such file"):
        load(str(tmp_path / "nothing.toml"))
