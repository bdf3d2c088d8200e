"""The tree of errors. Every message is one line: the value, the rule, the way out.

ShoalError
├── UsageError      what the user wrote is wrong: a plan, a name, a script (exit code 2)
├── LayoutError     workers disagree about the model they train
├── DivergedError   workers that should hold the same numbers do not, or hold none
├── PayloadError    bytes of a peer that no codec can have made
├── DeadlineError   a wait ran out; names the worker that was waited for
├── PeerLost        another worker of this run has died; this one must stop
├── ViewEnded       the members of a run change; what was under way is settled and perhaps done again
├── Evicted         this worker is no member of its run any more
│   └── RunEnded    because there is no run any more
└── Quarantined     this worker does harm: the run goes on without it, and it is not started again
"""


class ShoalError(Exception):
    """Base of every error Shoal raises on purpose."""


class UsageError(ShoalError):
    """The user's input cannot be run; the command line turns it into exit code 2."""


class LayoutError(ShoalError):
    """Workers hold models, data or calls that do not match, so there is nothing they could agree on."""


class DivergedError(ShoalError):
    """The training has gone wrong in its numbers: replicas differ, or gradients are not finite."""


class PayloadError(ShoalError):
    """Bytes that a peer sent are not what the codec of this plan makes; nothing of them was used."""


class DeadlineError(ShoalError):
    """A wait ran out of time; the message names the worker that was waited for, and its last known state."""


class PeerLost(ShoalError):  # noqa: N818  (a fact about a peer, not a mistake of ours)
    """A worker of this run is gone, so the step in progress can never complete."""


class ViewEnded(ShoalError):  # noqa: N818  (never leaves the package)
    """The members of the run change during an operation; the caller that can retry it catches this."""


class Evicted(ShoalError):  # noqa: N818  (a fact, not a mistake)
    """The run goes on without this worker; the message says why."""


class Quarantined(ShoalError):  # noqa: N818  (a fact, not a mistake)
    """This worker harms the training of the others, which go on without it; `reason` says how in a word or two."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class RunEnded(Evicted):
    """There is nothing to take part in any more; `well`: the training came to its end."""

    def __init__(self, message: str, *, well: bool) -> None:
        super().__init__(message)
        self.well = well
