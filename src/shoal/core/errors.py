"""The tree of errors. Every message is one line: the value, the rule, the way out.

ShoalError
├── UsageError      what the user wrote is wrong: a plan, a name, a script (exit code 2)
├── LayoutError     workers disagree about the model they train
├── DeadlineError   a wait ran out; names the worker that was waited for
├── PeerLost        another worker of this run has died; this one must stop
└── Evicted         the others go on without this worker; what it does from here on counts for nothing
"""


class ShoalError(Exception):
    """Base of every error Shoal raises on purpose."""


class UsageError(ShoalError):
    """What the user wrote cannot be run; the command line turns it into exit code 2."""


class LayoutError(ShoalError):
    """Workers hold models, data or calls that do not match, so there is nothing they could agree on."""


class DeadlineError(ShoalError):
    """A wait ran out of time; the message names who was waited for and what it was last doing."""


class PeerLost(ShoalError):  # noqa: N818  (a fact about a peer, not a mistake of ours)
    """A worker of this run is gone, so the step in progress can never complete."""


class Evicted(ShoalError):  # noqa: N818  (a decision about this worker, not a mistake of ours)
    """This worker is no member of its run any more; it may come back as a new one."""
