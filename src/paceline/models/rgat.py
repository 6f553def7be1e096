"""R-GAT on IGBH-Full of MLPerf Training v4.0, from a paper and sampled neighbours to one of 2,983 fields: 25 M parameters.

Source: Busbridge et al. 2019 (arXiv:1904.05811) in the form of mlcommons/training, graph_neural_network: three layers of 512
units in four heads, a graph attention (Velickovic et al. 2018, arXiv:1710.10903) for each of 11 relations with weights for both
of its ends, whose results are summed. Up to 15, 10 and 5 neighbours by each relation.

Each layer computes only what the next one reads: the first all nodes up to two steps from the paper, the second those next to
it, the third the paper (message flow graphs: Wang et al. 2019, Deep Graph Library, arXiv:1909.01315). Messages are summed as
they are read and never stored for each edge, as in DGL's and cuGraph's kernels. Here they are bags of an embedding table.

How many neighbours there are is assumed. It follows from the numbers of IGBH-Full (Khatua et al. 2023, arXiv:2302.13522: 269 M
papers, 277 M authors, about 15 citations, 2 authors and 4 topics a paper), of which a limit of 15, 10 and 5 leaves about half,
two thirds and four fifths in long tails. Seeds of a batch share no neighbours here. Sampling, and fetching features of 1024
numbers from the memories that hold them, is the work of the input pipeline and is not counted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 1024
_WIDTH, _HEADS, _CLASSES, _LAYERS = 512, 4, 2983, 3
_STEPS: dict[str, tuple[int, ...]] = {
    "paper": (1, 9, 107, 620),
    "author": (0, 2, 20, 230),
    "topic": (0, 4, 40, 350),
    "institute": (0, 0, 2, 20),
    "journal": (0, 1, 6, 20),
    "conference": (0, 0, 3, 10),
}
"""Nodes of each kind at most 0, 1, 2 and 3 steps from one paper."""
NODES = {kind: counts[-1] for kind, counts in _STEPS.items()}
"""Sampled nodes of each kind for one paper, with the paper itself."""
RELATIONS = (
    ("paper", "paper", (8, 64, 430)),
    ("author", "paper", (2, 20, 220)),
    ("paper", "author", (0, 5, 45)),
    ("topic", "paper", (4, 40, 350)),
    ("paper", "topic", (0, 30, 190)),
    ("institute", "author", (0, 2, 12)),
    ("author", "institute", (0, 0, 10)),
    ("journal", "paper", (1, 6, 60)),
    ("paper", "journal", (0, 5, 15)),
    ("conference", "paper", (0, 3, 30)),
    ("paper", "conference", (0, 0, 10)),
)
"""From which kind to which kind, and how many edges of one paper's sample end at most 0, 1 and 2 steps from it."""


class GraphAttention(nn.Module):
    """Graph attention: nodes (B, N, inputs) and (B, M, inputs) to messages at the latter along ``edges`` edges, (B, M, 512)."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.source, self.target = (nn.Linear(inputs, _WIDTH, bias=False) for _ in range(2))
        self.source_score, self.target_score = (nn.Parameter(torch.zeros(_HEADS, _WIDTH // _HEADS)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(_WIDTH))

    def forward(self, source: Tensor, target: Tensor, edges: int) -> Tensor:
        batch, receivers = target.shape[:2]
        x, y = (part.unflatten(-1, (_HEADS, -1)) for part in (self.source(source), self.target(target)))
        scores = (x * self.source_score).sum(-1), (y * self.target_score).sum(-1)
        ends = torch.zeros((2, batch * edges), dtype=torch.int64, device=source.device)
        along = F.leaky_relu(scores[0].flatten(0, 1)[ends[0]] + scores[1].flatten(0, 1)[ends[1]], 0.2).exp()
        sums = along.new_zeros(batch * receivers, _HEADS).index_add(0, ends[1], along)
        weights = along / (sums[ends[1]] + 1e-16)
        rows = torch.zeros(batch * edges * _HEADS, dtype=torch.int64, device=source.device)
        first = torch.zeros(batch * receivers * _HEADS, dtype=torch.int64, device=source.device)
        mixed = F.embedding_bag(rows, x.flatten(0, 2), first, mode="sum", per_sample_weights=weights.flatten())
        result: Tensor = mixed.view(batch, receivers, -1) + self.bias
        return result


class RelationLayer(nn.Module):
    """Layer from nodes by kind to the nodes at most ``steps`` from the papers, which sums over the relations to each kind."""

    def __init__(self, inputs: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.relations = nn.ModuleList(GraphAttention(inputs) for _ in RELATIONS)

    def forward(self, nodes: dict[str, Tensor]) -> dict[str, Tensor]:
        received: dict[str, Tensor] = {}
        for (source, target, edges), relation in zip(RELATIONS, self.relations, strict=True):
            if not edges[self.steps]:
                continue
            own = relation(nodes[source], nodes[target][:, : _STEPS[target][self.steps]], edges[self.steps])
            received[target] = received[target] + own if target in received else own
        return received


class Rgat(nn.Module):
    """R-GAT network, from features of the sampled nodes (B, 1250, 1024) to logits of the papers (B, 2983)."""

    def __init__(self) -> None:
        super().__init__()
        last = _LAYERS - 1
        self.layers = nn.ModuleList(RelationLayer(_WIDTH if i else FEATURES, last - i) for i in range(_LAYERS))
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        nodes = dict(zip(NODES, features.split(list(NODES.values()), 1), strict=True))
        for i, layer in enumerate(self.layers):
            nodes = layer(nodes)
            if i < _LAYERS - 1:
                nodes = {kind: self.drop(F.leaky_relu(x)) for kind, x in nodes.items()}
        result: Tensor = self.head(nodes["paper"][:, 0])
        return result


def rgat() -> nn.Module:
    """Return R-GAT, from features (B, 1250, 1024) of sampled nodes to logits (B, 2983)."""
    return Rgat()
