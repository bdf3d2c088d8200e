"""Which kernels a plan needs, so that they are compiled once, before workers are forked, and no others are.

It follows the choices that `build.py` makes.
"""

from shoal.plan.compose import compose
from shoal.plan.plan import Plan
from shoal.plan.terms import AloneTerm
from shoal.train.codec_candidates import ANY, ONLY_SGD
from shoal.wire.codec import kernels_of
from shoal.wire.codecs.factors import FactorCodec
from shoal.wire.codecs.largest import LargestCodec


def kernels_of_plan(plan: Plan, workers: int, links: bool) -> set[str]:
    """Names of kernels; `links`: whether anything crosses a socket, without which `wire(auto)` chooses no codec."""
    if isinstance(plan.exchange, AloneTerm) or (workers == 1 and not links):
        return set()
    if plan.parts:
        return {name for each in plan.plans for name in kernels_of_plan(each, workers, links)}
    if plan.factors is not None:
        return kernels_of(FactorCodec())
    if plan.order.by == "largest":
        return kernels_of(LargestCodec(0))
    # which one it will be is known only while it trains
    if plan.chooses_codec:
        plans = [Plan.parse(text) for text in (*ANY, *ONLY_SGD)] if links else []
        return {name for each in plans for name in kernels_of_plan(each, workers, links)}
    codec = compose(plan.codecs, workers)
    if codec is None:
        return set()
    return {"largest"} if codec.summed_as == "cast" else kernels_of(codec)  # a cast is summed as it is
