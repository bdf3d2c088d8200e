"""What an exchange decides by itself while training goes on: the record says it, with the step it came in."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GuardTightened:
    """The guard's word after every k steps."""

    cosine: float
    budget: float
    steps: int
    action: str
    ratio: float | None = None


@dataclass(frozen=True)
class CodecSwitched:
    """What gradients travel as from the next step on, or in which order they leave, and why."""

    codec: str
    reason: str
    steps: dict[str, float] = field(default_factory=dict)
    """Codec -> seconds a step, by the model; empty name: no codec, as measured."""


News = GuardTightened | CodecSwitched
