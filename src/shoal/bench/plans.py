"""Several plans in one text: `allreduce; alone` or `allreduce,alone`.

`;` always ends a plan. A comma ends it only where what follows cannot belong to the same plan: a term of an axis the
plan has said already, a named plan, or a file. So `allreduce, every(1), alone` is two plans.
"""

from collections.abc import Iterable, Iterator

from shoal.plan.load import SUFFIX
from shoal.plan.presets import PRESETS
from shoal.plan.registry import find_term


def split_plans(texts: Iterable[str]) -> list[str]:
    """Every plan of `texts`, in order; nothing is checked here but where each ends."""
    return [plan for text in texts for piece in text.split(";") if piece.strip() for plan in _by_comma(piece)]


def _by_comma(text: str) -> Iterator[str]:
    plan: list[str] = []
    for term in _terms(text):
        if plan and not _belongs(term, plan):
            yield ", ".join(plan)
            plan = []
        plan.append(term)
    yield ", ".join(plan)


def _belongs(term: str, plan: list[str]) -> bool:
    if any(_whole(each) for each in (*plan, term)):
        return False
    axis = _axis(term)
    # A plan may have several terms of the wire, and one of every other axis.
    return axis is None or axis == "wire" or axis not in map(_axis, plan)


def _whole(term: str) -> bool:
    return _name(term) in PRESETS or term.endswith(SUFFIX)


def _axis(term: str) -> str | None:
    """The axis of a known term; an unknown one stays where it is, and the plan is refused with its name."""
    found = find_term(_name(term))
    return found.axis if found else None


def _name(term: str) -> str:
    return term.partition("(")[0].strip()


def _terms(text: str) -> list[str]:
    """Split at commas outside brackets."""
    terms, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        # A stray bracket must not hide the commas behind it; the plan's own parser refuses it.
        if letter == "," and depth <= 0:
            terms.append("")
        else:
            terms[-1] += letter
    return [term.strip() for term in terms]
