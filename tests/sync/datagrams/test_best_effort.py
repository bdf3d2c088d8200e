"""Datagrams of differences in virtual time: nothing is lost for good, nothing counts twice, the rate is kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_network import LossyNetwork, NetworkFaults

from shoal.core.errors import PayloadError
from shoal.sync.datagrams.best_effort import DATAGRAM_BYTES, FRAMING, HEAD
from shoal.sync.datagrams.differences import BLOCK
from shoal.transport.datagram_seal import DatagramKeyPair, InvalidDatagramError

SIZE = 3 * BLOCK + 5
SHARES = st.sampled_from([0.0, 0.1, 0.4])


def step_all(network: LossyNetwork, seed: int) -> np.ndarray:
    """Everybody makes a step of whole numbers, on some of the parameters; returns their sum."""
    generator, total = np.random.default_rng(seed), np.zeros(SIZE, np.float32)
    for replica in network.replicas:
        by = generator.integers(-9, 10, SIZE).astype(np.float32)
        by[generator.random(SIZE) < 0.5] = 0
        replica.change(by)
        total += by
    return total


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), SHARES, SHARES, SHARES, st.sampled_from([0.0, 0.05]), st.integers(0, 1 << 30))
def test_once_all_rest_replicas_are_the_start_and_the_sum_of_all_changes(workers, lost, doubled, damaged, delay, seed):
    """Whatever is lost, damaged, doubled or overtaken on the way: later datagrams of the same blocks make up for it."""
    network = LossyNetwork(workers, SIZE, NetworkFaults(lost, doubled, damaged, delay), seed)
    total = np.zeros(SIZE, np.float32)
    for step in range(6):
        total += step_all(network, seed + step)
        network.run(0.003)
        apart = sum(replica.own for replica in network.replicas) - total
        assert not apart.any()
    network.run(1.0)
    for replica in network.replicas:
        assert np.array_equal(replica.parameters, total)


def test_without_losses_every_datagram_counts_and_one_cycle_is_enough():
    network = LossyNetwork(3, SIZE, NetworkFaults())
    total = step_all(network, 1)
    network.run(0.05)
    for replica in network.replicas:
        assert np.array_equal(replica.parameters, total)
        assert (replica.counts.lost, replica.counts.late, replica.counts.refused) == (0, 0, 0)


@pytest.mark.parametrize("rate", [2e4, 1e5, 3e6])
def test_no_second_has_more_bytes_than_the_rate_and_one_burst(rate):
    at_once = 4096
    network = LossyNetwork(3, SIZE, NetworkFaults(lost=0.3), rate=rate, at_once=at_once)
    step_all(network, 2)
    network.run(3.0)
    burst = max(at_once, 0.01 * rate) + DATAGRAM_BYTES + FRAMING
    for sent in network.bytes.values():
        for begin in np.arange(0.0, 2.0, 0.1):
            assert sum(size for at, size in sent if begin < at <= begin + 1.0) <= rate + burst
        assert sum(size for _, size in sent) >= 0.9 * 3.0 * rate  # nor is it left unused


def test_what_has_not_changed_does_not_travel():
    network = LossyNetwork(2, 100 * BLOCK, NetworkFaults())
    network.run(0.1)
    assert not any(network.bytes.values())
    by = np.zeros(100 * BLOCK, np.float32)
    by[7 * BLOCK] = 1.0
    network.replicas[0].change(by)
    assert list(network.replicas[0].blocks.changed()) == [7]
    network.run(0.1)
    assert np.array_equal(network.replicas[1].parameters, by)
    assert not network.bytes["w1"]


def test_drops_are_counted():
    network = LossyNetwork(2, SIZE, NetworkFaults(lost=0.1), seed=3)
    step_all(network, 3)
    network.run(5.0)
    one, other = (replica.counts for replica in network.replicas)
    assert one.lost == pytest.approx(0.1 * other.sent, rel=0.15)
    assert one.received + one.lost <= other.sent <= one.received + one.lost + 20


def test_strangers_forgeries_and_repeats_change_nothing_and_are_counted():
    network = LossyNetwork(3, SIZE, NetworkFaults())
    first, second, third = network.replicas
    second.change(np.ones(SIZE, np.float32))
    to, data = second.exchange.next_datagram(1.0)
    receiver = next(each for each in network.replicas if each.name == to)
    other = third if receiver is first else first
    receiver.exchange.receive(data)
    receiver.take_in()
    before = receiver.parameters.copy()
    receiver.exchange.receive(data)  # sent again by somebody
    assert (receiver.counts.late, receiver.counts.refused) == (1, 0)
    slot, number = HEAD.unpack_from(data)
    sealed = data[HEAD.size :]
    forged = [b"", data[:-1], data + b"x", bytes(DATAGRAM_BYTES), HEAD.pack(slot, number + 1) + sealed]
    forged += [HEAD.pack(9, number) + sealed, HEAD.pack(int(other.name[1:]), number) + sealed]
    for each in forged:
        receiver.exchange.receive(each)
    other.exchange.receive(data)  # made for another
    receiver.take_in()
    assert np.array_equal(receiver.parameters, before)
    assert (receiver.counts.refused, other.counts.refused) == (len(forged), 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_and_blocks_that_are_none_are_refused(bad):
    network = LossyNetwork(2, SIZE, NetworkFaults())
    first, second = network.replicas
    second.change(np.full(SIZE, bad, np.float32))
    first.exchange.receive(second.exchange.next_datagram(1.0)[1])
    seal = second.exchange.peers["w0"].seal
    for block, number in ((99, 7), (0, 1 << 63)):
        body = block.to_bytes(4, "little") + bytes(4 * BLOCK)
        first.exchange.receive(HEAD.pack(1, number) + seal.close(number, body))
    first.take_in()
    assert first.counts.refused == 3
    assert not first.parameters.any()


def test_nothing_is_sent_to_a_lost_member():
    network = LossyNetwork(3, SIZE, NetworkFaults())
    step_all(network, 4)
    network.replicas[0].exchange.forget("w2")
    sent = {network.replicas[0].exchange.next_datagram(float(at)) for at in range(1, 30)}
    assert {found[0] for found in sent if found is not None} == {"w1"}


def test_a_seal_opens_only_what_the_other_end_made():
    own, other, stranger = DatagramKeyPair(), DatagramKeyPair(), DatagramKeyPair()
    sealed = own.seal_with(other.public).close(5, b"words")
    assert other.seal_with(own.public).open(5, sealed) == b"words"
    for seal, number in ((other.seal_with(own.public), 6), (stranger.seal_with(own.public), 5),
                         (own.seal_with(other.public), 5)):  # fmt: skip
        with pytest.raises(InvalidDatagramError):
            seal.open(number, sealed)


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32)])
def test_a_key_that_is_none_is_refused(public):
    with pytest.raises(PayloadError, match="is no key for datagrams"):
        DatagramKeyPair().seal_with(public)
