"""Names the workers whose replicas differ, or that stopped before the others, when a run has ended."""

from collections.abc import Mapping


def name_different(ends: Mapping[int, tuple[int, str]]) -> str:
    """Return an error if workers that ended after the same step hold different parameters, else "".

    `ends`: by worker, the step after which its script ended and the fingerprint of its parameters, empty if unknown.
    """
    last = max((step for step, found in ends.values() if found), default=0)
    prints = {worker: found for worker, (step, found) in ends.items() if found and step == last}
    if len(set(prints.values())) <= 1:
        return ""
    # The majority is taken for right, the others are named.
    most = max(prints.values(), key=list(prints.values()).count)
    others = ", ".join(f"worker {worker}" for worker, found in prints.items() if found != most)
    first = next(worker for worker, found in prints.items() if found == most)
    return (
        f"at the end, after step {last}, {others} and worker {first} hold different "
        "parameters; does the script change them, or their gradients, on some workers only?"
    )


def name_early(ends: Mapping[int, tuple[int, str]]) -> str:
    """Name the workers that ended their loop before the others, which then trained on without them; "" if none did.

    `ends`: as above. Workers without a fingerprint may have ended a step earlier for want of samples.
    """
    known = {worker: step for worker, (step, found) in ends.items() if found}
    last = max(known.values(), default=0)
    early = [f"worker {worker} ended its script after step {step}" for worker, step in known.items() if step < last]
    if not early:
        return ""
    return (
        f"{', '.join(early)}; the others trained on without it to step {last}. If workers are to end together, let "
        "them decide by the same number: run.mean(...) of their own"
    )
