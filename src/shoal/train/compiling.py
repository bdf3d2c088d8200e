"""Which kernels a plan needs, so that they are compiled once, before workers are forked, and no others are.

It follows the choices that `build.py` makes.
"""

from shoal.plan.automatic import Wire
from shoal.plan.compose import compose
from shoal.plan.plan import Plan
from shoal.plan.terms import Alone
from shoal.train.candidates import ANY, ONLY_SGD
from shoal.wire.codec import kernels_of
from shoal.wire.codecs.cast import Cast
from shoal.wire.codecs.largest import Largest


def kernels_of_plan(plan: Plan, workers: int, links: bool) -> set[str]:
    """Names of kernels; `links`: whether anything crosses a socket, without which `wire(auto)` chooses no codec."""
    if isinstance(plan.exchange, Alone) or (workers == 1 and not links):
        return set()
    if plan.order.by == "largest":
        return kernels_of(Largest(0))
    if any(isinstance(term, Wire) for term in plan.wire):
        plans = [Plan.parse(text) for text in (*ANY, *ONLY_SGD)] if links else []
        return {name for each in plans for name in kernels_of_plan(each, workers, links)}
    codec = compose(plan.codecs, workers)
    if codec is None:
        return set()
    return {"largest"} if isinstance(codec, Cast) else kernels_of(codec)  # a cast is summed as it is
