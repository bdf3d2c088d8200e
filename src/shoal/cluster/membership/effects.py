"""What a coordinator does: write something down, tell somebody something; in that order, and nothing else."""

from dataclasses import dataclass

from shoal.cluster.membership.log import Entry
from shoal.cluster.membership.messages import Order


@dataclass(frozen=True)
class Write:
    """Make this durable before anything that follows."""

    entry: Entry


@dataclass(frozen=True)
class Tell:
    """Send this to that member."""

    member: str
    order: Order


Effect = Write | Tell
