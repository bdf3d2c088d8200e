"""A tree that a user writes as its edges, `0-1:1-2:1-3`: read, checked, and kept a tree when nodes are lost."""

from collections.abc import Sequence
from functools import lru_cache

from shoal.core.errors import UsageError

Edges = tuple[tuple[int, int], ...]
MOST_NODES = 1 << 12


@lru_cache(maxsize=64)
def read_edges(text: str) -> Edges:
    """Return the edges of a tree over the nodes 0, 1, … n-1; UsageError for a loop, and for what is not connected."""
    try:
        edges = tuple((int(a), int(b)) for a, b in (edge.split("-") for edge in text.split(":")))
    except ValueError:
        raise UsageError(f"edges={text}: an edge is two workers, as 0-1; write edges=0-1:1-2:1-3") from None
    roots: dict[int, int] = {}
    for one, other in edges:
        if max(one, other) >= MOST_NODES:
            raise UsageError(f"edges={text}: worker {max(one, other)} is above {MOST_NODES - 1}; number them from 0")
        a, b = _root(roots, one), _root(roots, other)
        if a == b:
            raise UsageError(f"edges={text}: {one}-{other} closes a loop; leave it out")
        # The smaller number becomes the root, so at the end every connected node has root 0.
        roots[max(a, b)] = min(a, b)
    nodes = {node for edge in edges for node in edge}
    for node in range(max(nodes) + 1):
        if node not in nodes or _root(roots, node) != 0:
            raise UsageError(f"edges={text}: worker {node} is not connected to worker 0; add an edge")
    return edges


def _root(roots: dict[int, int], node: int) -> int:
    while roots.get(node, node) != node:
        node = roots[node]
    return node


def tree_over(edges: Edges, present: Sequence[int]) -> dict[int, int | None]:
    """Return the parent of each node that is present, as far as `edges` say; the first one is the root.

    Neighbours of a missing node become neighbours of the first of them; a node that no edge names is the root's
    child.
    """
    near: dict[int, list[int]] = {}
    for one, other in edges:
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
    for missing in [node for node in near if node not in present]:
        first, *others = near.pop(missing) or [missing]
        if first == missing:  # all its neighbours were missing, too
            continue
        near[first].remove(missing)
        for other in others:
            near[other][near[other].index(missing)] = first
            near[first].append(other)
    root = present[0]
    parents: dict[int, int | None] = {root: None}
    waiting = [root]
    # The list grows while it is read: a breadth-first walk.
    for node in waiting:
        for other in near.get(node, ()):
            if other not in parents:
                parents[other] = node
                waiting.append(other)
    return parents | {node: root for node in present if node not in parents}
