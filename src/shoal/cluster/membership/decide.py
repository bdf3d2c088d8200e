"""What is complete when a view ends: the one decision everything else hangs on."""

from shoal.cluster.membership.messages import Standing


def decide(standings: list[Standing]) -> int:
    """How many operations are complete, for all that stay, when they leave a view.

    Whoever is behind the others holds the result: nobody completes what not everybody holds. If all are equally far
    and all hold the result of the next operation, formed in one view, it counts too, though nobody had got there.
    """
    if not standings:
        return 0
    furthest = max(s.applied for s in standings)
    level = all(s.applied == furthest for s in standings)
    held = {s.formed for s in standings}
    return furthest + (level and len(held) == 1 and 0 not in held)
