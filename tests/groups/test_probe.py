"""The probe: what it measures, and whom it lets in."""

import socket
import threading
import tomllib

import forked
import msgspec
import pytest
import torch

from shoal.core.errors import PeerLost
from shoal.groups.cluster_file import ClusterMeasurement, LinkMeasurement, SpeedMeasurement, as_toml
from shoal.groups.probe import _answer, _rate, probe, repeat_doubtful
from shoal.lab.needs import missing
from shoal.testing import WorkerWorld, run_world


def test_every_direction_is_measured_and_all_workers_know_it():
    def body(world: WorkerWorld):
        cluster = probe(world.group, "127.0.0.1")
        pairs = torch.tensor([[link.sender, link.receiver] for link in cluster.links])
        rates = torch.tensor([link.rate_mbit for link in cluster.links] + [w.gflops for w in cluster.workers])
        return {"pairs": pairs, "rates": rates}

    first, *others = run_world(3, body)
    assert first["pairs"].tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    assert (first["rates"] > 0).all()
    assert all(torch.equal(first["rates"], other["rates"]) for other in others)


def test_the_rate_counts_the_second_half():
    arrivals = [(0.0, 10), (1.0, 10), (2.0, 50), (3.0, 50), (4.0, 50)]
    assert _rate(arrivals) == 50.0
    assert _rate([(0.0, 10)]) == 0.0


def test_a_link_that_looks_unlike_the_others_is_measured_again():
    links = [LinkMeasurement(0, 1, 1.0, 10.0), LinkMeasurement(1, 0, 2.0, 7.0), LinkMeasurement(0, 2, 1.0, 10.2)]
    again = iter([LinkMeasurement(1, 0, 1.0, 10.1), LinkMeasurement(1, 0, 1.5, 9.9)])
    found = repeat_doubtful(links, lambda sender, receiver: next(again))
    assert found == [links[0], LinkMeasurement(1, 0, 1.0, 9.9), links[2]]
    slow = [links[0], LinkMeasurement(1, 0, 1.0, 5.0), links[2]]  # it is slow, and stays so
    assert repeat_doubtful(slow, lambda sender, receiver: slow[1]) == slow


def test_a_stranger_is_sent_away():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stranger = threading.Thread(target=_knock, args=(listener.getsockname(),))
        stranger.start()
        with pytest.raises(PeerLost, match="stranger"):
            _answer(listener, b"right" + bytes(11))
        stranger.join(5)


def _knock(address):
    with socket.create_connection(address, timeout=5) as connection:
        connection.sendall(b"wrong" + bytes(11))


def test_the_file_is_toml():
    cluster = ClusterMeasurement(
        [SpeedMeasurement(0, 'a "host"', "10.0.0.1", 80.5, 2)], [LinkMeasurement(0, 1, 1.5, 900.25)]
    )
    read = tomllib.loads(as_toml(cluster))
    assert read["worker"][0]["host"] == 'a "host"'
    assert msgspec.convert(read["link"][0], LinkMeasurement) == cluster.links[0]


@pytest.mark.skipif(bool(missing()), reason="; ".join(missing()))
@pytest.mark.parametrize("bounded", [False, pytest.param(True, marks=pytest.mark.soak("clock"))])
def test_a_lab_is_measured_as_it_was_asked_for(tmp_path, bounded):
    done = forked.shoal(tmp_path, "probe", "--lab", "2 hosts, 20mbit, 5ms", "--json")
    assert done.code == 0, done.err
    written = tomllib.loads((tmp_path / "cluster.toml").read_text())
    assert {"workers": written["worker"], "links": written["link"]} == done.json
    for link in done.json["links"]:
        assert link["rtt_ms"] >= 20.0  # two links, both ways; the machine may be late, never early
        assert link["rate_mbit"] > 0
        assert not bounded or link["rtt_ms"] <= 60.0
        assert not bounded or 2.0 <= link["rate_mbit"] <= 22.0  # a reader that was late finds a little more at once


def test_one_machine_alone_has_no_links(tmp_path):
    done = forked.shoal(tmp_path, "probe", "--json", "--out", "mine.toml")
    assert done.code == 0, done.err
    assert done.json["links"] == []
    assert tomllib.loads((tmp_path / "mine.toml").read_text())["worker"][0]["gflops"] > 0
