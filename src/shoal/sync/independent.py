"""No synchronization: every worker trains its part by itself. The null member, for `alone` and for a world of one.

It listens to nothing, so a step costs what it costs without Shoal. Do not use it to train one model with several
workers: each ends with a model of its own.
"""

from shoal.sync.synchronizer import Synchronizer


class IndependentSynchronizer(Synchronizer):
    """Every hook does nothing."""
