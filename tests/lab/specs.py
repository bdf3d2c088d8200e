"""Labs for hypothesis: any that a file could describe."""

from hypothesis import strategies as st

from shoal.core.units import BitRate, EventTime, TimeSpan
from shoal.lab.actions import (
    ChangeLinks,
    CutLinks,
    DuplicateFrames,
    FlipBits,
    FreezeHosts,
    HealPartitions,
    KillHosts,
    PartitionHosts,
    ReopenLinks,
    RestoreLinks,
    SilenceLinks,
    StallLinks,
    ThawHosts,
)
from shoal.lab.link import LabLink
from shoal.lab.spec import HostSpec, LabEvent, LabSpec

rates = st.integers(0, 10**11).map(BitRate)
delays = st.integers(0, 7 * 24 * 3600 * 10**9).map(TimeSpan)
shares = st.floats(0, 1).map(abs)
bursts = st.just(1.0) | st.floats(1, 1e6)


@st.composite
def links(draw: st.DrawFn) -> LabLink:
    short, long = sorted([draw(delays), draw(delays)])
    burst = draw(bursts)
    most = burst / (burst + 1) if burst > 1 else 1.0
    return LabLink(rate=draw(rates), delay=long, jitter=short, loss=draw(st.floats(0, most)) + 0.0, burst=burst)


def actions(size: int) -> st.SearchStrategy[object]:
    hosts = st.sets(st.integers(0, size - 1), min_size=1).map(lambda found: tuple(sorted(found)))
    plain = st.builds(
        lambda kind, on: kind(on), st.sampled_from([CutLinks, RestoreLinks, KillHosts, FreezeHosts, ThawHosts]), hosts
    )
    changes = st.builds(ChangeLinks, hosts, rate=rates.filter(lambda r: r.bits > 0), loss=st.none() | st.floats(0, 0.5))
    noises = st.builds(
        lambda kind, on, share: kind(on, share), st.sampled_from([DuplicateFrames, FlipBits]), hosts, shares
    )
    ways = st.builds(lambda kind, a, b: kind(a, b), st.sampled_from([SilenceLinks, ReopenLinks]), hosts, hosts)
    groups = hosts.map(lambda group: PartitionHosts((group,)))
    return plain | changes | noises | ways | groups | st.builds(StallLinks, hosts, delays) | st.just(HealPartitions())


@st.composite
def events(draw: st.DrawFn, size: int) -> LabEvent:
    action = draw(actions(size))
    at = draw(delays.map(EventTime) | st.integers(0, 10**9).map(lambda step: EventTime(step=step)))
    lasts = draw(st.none() | delays) if action.lasting else None
    return LabEvent(at, action, lasts, draw(st.just(1.0) | shares))


@st.composite
def specs(draw: st.DrawFn) -> LabSpec:
    size = draw(st.integers(1, 5))
    one = st.builds(HostSpec, links(), st.floats(1e-6, 1))
    hosts = draw(st.lists(one, min_size=size, max_size=size) | one.map(lambda host: [host] * size))
    happening = draw(st.just([]) | st.lists(events(size), max_size=4))
    seed, compute = draw(st.integers(0, 2**63 - 1)), draw(st.sampled_from(["real", "replay"]))
    return LabSpec(tuple(hosts), seed, compute, tuple(happening))
