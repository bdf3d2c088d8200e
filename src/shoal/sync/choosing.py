"""Which codec a run should take: pure arithmetic on what all workers measured, so that all come to the same.

clearly faster   the modelled step is at least a tenth shorter than the measured one
gentle first     of those within a tenth of the fastest, the one that loses least
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.sync.price import CodecPrice, MeasuredStep, NetworkEstimate, StepForecast, forecast

GAIN = 0.9
"""What a step must come to, of what it is without a codec."""
NEAR = 1.1
"""A codec within this of the fastest is as good, if it loses less."""


@dataclass(frozen=True)
class CodecChoice:
    """What was chosen and why."""

    codec: str
    """Empty: none."""
    reason: str
    steps: dict[str, float]


def choose(measured: MeasuredStep, prices: Sequence[CodecPrice], network: NetworkEstimate) -> CodecChoice:
    """`measured` without a codec; `prices` of the candidates, those that lose least first."""
    found = {"": measured.step}
    if network.rate is None:
        return CodecChoice("", "the network's rate is not known, for too little went over it", found)
    forecasts = [forecast(measured, price, network) for price in prices]
    found |= {each.codec: each.step for each in forecasts}
    clear = [each for each in forecasts if each.step <= GAIN * measured.step]
    rate = f"{network.rate * 8 / 1e6:.0f} Mbit/s"
    if not clear:
        best = min(forecasts, key=lambda each: each.step, default=None)
        return CodecChoice("", f"no codec makes a step clearly shorter at about {rate}{_said(best, measured)}", found)
    fastest = min(each.step for each in clear)
    chosen = next(each for each in clear if each.step <= NEAR * fastest)
    return CodecChoice(chosen.codec, f"at about {rate}{_said(chosen, measured)}", found)


def _said(other: StepForecast | None, measured: MeasuredStep) -> str:
    if other is None:
        return ""
    return f", {other.codec} makes a step of {measured.step * 1e3:.1f} ms about {other.step * 1e3:.1f} ms"
