"""How many members a run begins with, and when silence is loss."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """How many begin, and when silence is loss."""

    members: int = 1
    """So many make the first view of a run, begun or resumed; whoever comes later is let in between two steps."""
    gather: float = 120.0
    """Seconds the first view waits for them; those that die before it count as having come."""
    silence: float = 3.0
    """Seconds after which a member that was frozen is out, and its launcher knows."""
    steps: float = 4.0
    """Or this many of its steps, if that is longer."""
    margin: float = 0.3
    """Seconds of these for ticks, the log and the launcher's own look: so much earlier without a beat is too long."""
    quiet: float = 1.0
    """Seconds without a beat, of most members, after which it may be the coordinator who hears nobody."""
    stuck: float = 60.0
    """Seconds after which a member is out that beats, but whose training thread does not run (a deadlock)."""
    longest: float = 600.0
    """But never more than this."""
    lease: float = 120.0
    """Seconds a member trains on unheard."""
    ahead: float = 1.0
    """Seconds of training between the word that somebody enters and the step at which it does."""
    repeat: float = 0.5
    """Seconds after which what was not answered is said again."""
    answer: float = 10.0
    """Seconds a remote worker that beats has to answer a proposal or to enter a view; an agent needs milliseconds."""
    asleep: float = 1.0
    """Seconds between two ticks after which the coordinator was not running itself."""
