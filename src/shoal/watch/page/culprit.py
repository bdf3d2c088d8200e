"""What cost the most of the last minute, in one sentence: `worker 3 computed 41 % longer than the others`.

Workers of one step wait for each other, so the others wait for the one that waits least. What that worker did with
its time is the cause: computing, loading, packing, or bytes on a slow link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.watch import figures
from shoal.watch.page.recent import StepSums
from shoal.watch.worker import WorkerRecord

WINDOW = 60.0
WORTH = 0.05
"""A share of the time that is worth a name."""
QUIET = 15.0
"""Seconds without a step, and times the usual step, from which on the silence is the news."""
QUIET_STEPS = 20


@dataclass(frozen=True)
class MinuteSums:
    """One worker's last minute: shares of its time by what it did."""

    rank: int
    seconds: float
    load: float
    compute: float
    encode: float
    wait: float
    exposed: float
    update: float

    @classmethod
    def of(cls, rank: int, steps: StepSums) -> "MinuteSums":
        return cls(
            rank,
            steps["seconds"],
            steps["load"],
            steps["forward_backward"],
            steps["encode"],
            steps["exchange_wait"],
            steps["exposed"],
            steps["update"] + steps["other"],
        )

    def share(self, name: str) -> float:
        return float(getattr(self, name)) / self.seconds if self.seconds else 0.0


def name_culprit(recent: Mapping[int, StepSums], records: Sequence[WorkerRecord], silence: float = 0.0) -> str:
    """The sentence, from every worker's last minute; `silence`: how long ago the last step of a live run ended."""
    sums = [MinuteSums.of(rank, steps) for rank, steps in recent.items()]
    if not sums:
        return "no step was recorded in the last minute"
    count = max(steps.steps for steps in recent.values())
    # By the run's own steps: a minute of silence is nothing where a step takes one.
    usual = max(each.seconds for each in sums) / max(1, count)
    if silence > max(QUIET, QUIET_STEPS * usual):
        return f"no step has ended for {figures.seconds(silence)}{_where(recent)}"
    if len(sums) == 1:
        return _alone(sums[0])
    return _straggler(sums) or _link(sums, records) or _encoding(sums) or _alone(_mean(sums))


def _where(recent: Mapping[int, StepSums]) -> str:
    last = {rank: steps.step for rank, steps in recent.items()}
    behind = [rank for rank, step in last.items() if step == min(last.values())]
    if len(behind) == len(last) or not behind:
        return ""
    return f"; furthest behind is worker {behind[0]}, in step {last[behind[0]] + 1}"


def _straggler(sums: Sequence[MinuteSums]) -> str:
    """One worker that the others wait for, and what it does meanwhile."""
    # the wait for others, without that for the network
    slow = min(sums, key=lambda each: each.share("wait") - each.share("exposed"))
    others = _mean([each for each in sums if each is not slow])
    cost = (others.share("wait") - others.share("exposed")) - (slow.share("wait") - slow.share("exposed"))
    if cost < WORTH:
        return ""
    doing = {"load": "waits for its data", "compute": "computes", "encode": "packs gradients", "update": "updates"}
    what = max(doing, key=lambda name: slow.share(name) - others.share(name))
    ratio = getattr(slow, what) / getattr(others, what) - 1 if getattr(others, what) > 0 else 0.0
    longer = f" {ratio:.0%} longer than the others" if 0.01 <= ratio < 10 else " while the others wait"
    return f"worker {slow.rank} {doing[what]}{longer}: it cost {cost:.0%} of the last minute"


def _link(sums: Sequence[MinuteSums], records: Sequence[WorkerRecord]) -> str:
    """Bytes that all wait for, and the slowest link among those measured."""
    cost = _mean(sums).share("exposed")
    if cost < WORTH:
        return ""
    hosts = {str(record.rank): record.host for record in records}
    links = [
        (rate, rtt, record.rank, peer)
        for record in records
        for peer, (rate, rtt) in record.links.items()
        if rate is not None
    ]
    if not links:
        worst = max(sums, key=lambda each: each.share("exposed"))
        return f"transfers that nothing hid cost {cost:.0%} of the last minute, most of it on worker {worst.rank}"
    rate, rtt, rank, peer = min(links, key=lambda link: link[0])
    host = hosts.get(peer, "")
    delay = f", {1000 * rtt:.0f} ms" if rtt else ""
    to = f"worker {peer}" + (f" on {host}" if host and host != hosts.get(str(rank)) else "")
    return (
        f"waiting for transfers cost {cost:.0%} of the last minute; the slowest link is "
        f"worker {rank}'s to {to}: {figures.size(rate)}/s{delay}"
    )


def _encoding(sums: Sequence[MinuteSums]) -> str:
    cost = _mean(sums).share("encode")
    return f"packing gradients cost {cost:.0%} of the last minute" if cost >= 2 * WORTH else ""


def _alone(each: MinuteSums) -> str:
    """Where the time went, if no single worker is the cause."""
    if each.share("load") >= 0.2:
        return f"waiting for data cost {each.share('load'):.0%} of the last minute"
    if each.share("wait") >= 0.2:
        return f"waiting for each other cost {each.share('wait'):.0%} of the last minute, all workers about alike"
    return f"nothing stands out: {each.share('compute'):.0%} of the last minute was forward and backward passes"


def _mean(sums: Sequence[MinuteSums]) -> MinuteSums:
    names = ("seconds", "load", "compute", "encode", "wait", "exposed", "update")
    return MinuteSums(-1, *(sum(getattr(each, name) for each in sums) / max(1, len(sums)) for name in names))
