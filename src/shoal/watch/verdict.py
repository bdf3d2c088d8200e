"""What a run's codec saved and cost, in words: from what was measured, and a model of what was not.

    topk(0.01) saved about 61 ms of transfer and cost 9.0 ms of encoding and decoding a step
    onebit(2048) costs you time on this link: fp16 would be about 1.4x faster

Measured are encoding, waiting, decoding and bytes; the link's rate is estimated by links, or from the largest
transfers; what no codec and fp16 would do is computed (`sync/price.py`), and said with "about".
"""

from collections.abc import Sequence

import msgspec

from shoal.core.events import CodecPriced
from shoal.sync.price import CodecPrice, MeasuredStep, NetworkEstimate, forecast, summing_hops
from shoal.watch.exchanged import ExchangeTotals
from shoal.watch.worker import WorkerRecord

FASTER = 1.05
"""What another codec must promise to be advised: models are not better than that."""
TELLING = 64 << 10
"""Bytes a step from which on the time they took tells a rate."""


class CodecAlternative(msgspec.Struct, frozen=True, kw_only=True):
    """The same run with another codec, by the model."""

    codec: str
    """Empty: none."""
    step: float
    """Seconds."""
    transfer: float
    """Seconds a step."""


class CodecVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the record says about the codec; seconds of the mean worker a step."""

    codec: str
    """Empty: none."""
    meets: str
    wired: bool
    """Whether anything went over sockets."""
    step: float
    encode: float
    transfer: float
    """In which anything was under way."""
    wait: float
    """Of it: what was not hidden."""
    decode: float
    hidden: float
    """The share of the transfer that was hidden."""
    rate: float | None
    """Bytes a second, estimated."""
    saved: float | None
    """Seconds of transfer against no codec, by the model; None where the rate is not known."""
    alternatives: list[CodecAlternative]
    faster: str | None
    """The best alternative, if it is clearly faster; `none` for no codec."""
    times: float
    """How many times faster; 1 if none is."""
    costs_time: bool
    """Whether no codec at all would be clearly faster."""
    words: list[str]


def verdict(workers: Sequence[WorkerRecord]) -> CodecVerdict | None:
    """The judgement on a run; None where nothing was measured."""
    # Of several joins the one with the most bytes, because it decides how long the link is busy.
    found = [max(w.exchanges, key=lambda e: e.total("raw")) for w in workers if w.exchanges]
    if not found:
        return None
    prices = next((worker.prices for worker in workers if worker.prices), [])
    return judge(measured(found, len(workers)), network(found), [_price(p) for p in prices], found[0].meets)


def measured(found: Sequence[ExchangeTotals], workers: int) -> MeasuredStep:
    """The mean worker."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    encode, decode, wire, wait = (
        mean([each.total(figure) for each in found]) for figure in ("encode", "decode", "wire", "wait")
    )
    hops = {"gather": 1, "twostage": 2}.get(found[0].meets, summing_hops(workers))
    return MeasuredStep(
        CodecPrice(found[0].codec, encode, decode, wire, hops),
        step=mean([each.step_seconds for each in found]),
        span=mean([each.span for each in found]),
        wait=wait,
        room=mean([each.room for each in found]),
        buckets=max(len(each.buckets) for each in found),
    )


def network(found: Sequence[ExchangeTotals]) -> NetworkEstimate:
    """The rate as links estimate it, or as the transfers show it where they are large; whichever is more."""
    rates = [each.rate for each in found if each.rate]
    trips = [each.rtt for each in found if each.rtt]
    rtt = max(trips, default=None)
    for each in found:
        wire, busy = each.total("wire"), each.span - (rtt or 0.0) / 2
        if wire >= TELLING and busy > 0:
            rates.append(wire / busy)
    return NetworkEstimate(max(rates, default=None), rtt)


def judge(measured: MeasuredStep, network: NetworkEstimate, prices: Sequence[CodecPrice], meets: str) -> CodecVerdict:
    """Pure: the arithmetic and the words."""
    now, wired = measured.price, measured.price.wire > 0
    # Inside one host nothing is sent, so no rate is needed to compare.
    known = network.rate is not None or not wired
    others = [forecast(measured, price, network) for price in prices if price.codec != now.codec] if known else []
    best = min(others, key=lambda other: other.step, default=None)
    clear = best is not None and best.step > 0 and measured.step / best.step >= FASTER
    none = next((other for other in others if not other.codec), None)
    costs = clear and none is not None and bool(now.codec) and measured.step / none.step >= FASTER
    found = CodecVerdict(
        codec=now.codec,
        meets=meets,
        wired=wired,
        step=measured.step,
        encode=now.encode,
        transfer=measured.span,
        wait=measured.wait,
        decode=now.decode,
        hidden=1.0 - min(1.0, measured.wait / measured.span) if measured.span > 0 else 1.0,
        rate=network.rate if wired else None,
        saved=none.transfer - measured.span if none is not None and wired else None,
        alternatives=[CodecAlternative(codec=o.codec, step=o.step, transfer=o.transfer) for o in others],
        faster=(best.codec or "none") if best is not None and clear else None,
        times=measured.step / best.step if best is not None and clear else 1.0,
        costs_time=costs,
        words=[],
    )
    return msgspec.structs.replace(found, words=_words(found))


def _words(found: CodecVerdict) -> list[str]:
    cost = f"{_ms(found.encode + found.decode)} of encoding and decoding a step"
    if not found.codec:
        lines = [f"no codec: {_ms(found.transfer)} of transfer a step, {found.hidden:.0%} of it hidden"]
    elif not found.wired:
        lines = [f"{found.codec} cost {cost}; inside one host nothing crosses a socket, so it saved nothing"]
    elif found.saved is None:
        lines = [f"{found.codec} cost {cost}; its saving is unknown, because the rate of the network is"]
    elif found.saved > 0:
        lines = [f"{found.codec} saved about {_ms(found.saved)} of transfer and cost {cost}"]
    else:
        lines = [f"{found.codec} saved no transfer and cost {cost}"]
    if found.faster is not None:
        other = "no codec" if found.faster == "none" else found.faster
        where = "on this link" if found.wired else "inside one host"
        advice = f"{other} would be about {found.times:.1f}x faster"
        lines.append(f"{found.codec} costs you time {where}: {advice}" if found.costs_time else f"{advice} {where}")
    return lines


def _price(event: CodecPriced) -> CodecPrice:
    return CodecPrice(event.codec, event.encode, event.decode, event.wire, event.hops)


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
