"""A graph convolutional network (Kipf & Welling 2017) that names the family of a small graph.

The adjacency is dense: graphs of a few nodes in a batch of one shape, and products of matrices that any device has.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

NODES, FEATURES, FAMILIES = 12, 4, 3


class GCN(nn.Module):
    """Two rounds in which every node mixes with its neighbours, then the mean over the nodes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, width), nn.Linear(width, width)
        self.head = nn.Linear(width, FAMILIES)

    def forward(self, nodes: Tensor, mixing: Tensor) -> Tensor:
        nodes = torch.relu(mixing @ self.first(nodes))
        nodes = torch.relu(mixing @ self.second(nodes))
        return self.head(nodes.mean(1))


def normalised(edges: Tensor) -> Tensor:
    """With a loop at every node, divided by the roots of both degrees."""
    looped = edges + torch.eye(NODES)
    root = looped.sum(-1).rsqrt()
    return root.unsqueeze(-1) * looped * root.unsqueeze(-2)


def family(number: int) -> Tensor:
    """0: a ring. 1: a star. 2: two halves, each with all its edges."""
    edges, nodes = torch.zeros(NODES, NODES), torch.arange(NODES)
    if number == 0:
        edges[nodes, (nodes + 1) % NODES] = 1
    elif number == 1:
        edges[0, 1:] = 1
    else:
        edges[:] = (nodes.unsqueeze(0) % 2 == nodes.unsqueeze(1) % 2) & (nodes.unsqueeze(0) != nodes.unsqueeze(1))
    return torch.maximum(edges, edges.T)


def graphs(part: str, limit: int | None, _folder: object = None) -> TensorDataset:
    """(features, mixing, family): nodes in random order, some edges added, the degree among the features."""
    generator = torch.Generator().manual_seed(0 if part == "train" else 1)
    labels = torch.arange(limit or 2000) % FAMILIES
    edges = torch.stack([family(number) for number in range(FAMILIES)])[labels]
    added = torch.rand(edges.shape, generator=generator).triu(1) > 0.95
    edges = torch.maximum(edges, (added | added.mT).float())
    order = torch.rand(len(labels), NODES, generator=generator).argsort(1)
    graph = torch.arange(len(labels))[:, None, None]
    edges = edges[graph, order[:, :, None], order[:, None, :]]
    nodes = torch.randn(len(labels), NODES, FEATURES, generator=generator)
    nodes[..., 0] = edges.sum(-1)
    return TensorDataset(nodes, normalised(edges), labels)
