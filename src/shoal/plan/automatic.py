"""The term that leaves what travels to the run."""

from typing import ClassVar, Literal

from shoal.plan.term import CodecTerm


class WireTerm(CodecTerm, frozen=True, tag="wire"):
    """Measures the first steps without a codec, then chooses what gradients travel as, if that is clearly faster.

    Candidates lose nothing worth mentioning with any optimizer (fp16, int8); onebit and topk with feedback too where
    the optimizer is SGD, for which error feedback is known to hold. Inside one host it chooses none at once.
    Costs: some milliseconds of trials in join; the first nine steps without a codec.
    Cites: the model of a step is that of Shi et al. 2018, "Performance Modeling and Evaluation of Distributed Deep
    Learning Frameworks on GPUs".
    Avoid: in runs of a few steps; where members change all the time: until there is a choice, all measure anew.
    """

    name: ClassVar[str] = "wire"

    how: Literal["auto"]
