"""Layers of graphs that choose edges by data, as graph attention leaves out loops and adds one for each node."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from tests.support.against_eager import equal_eager
from tests.support.joint_traces import joint_calls


class Attention(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.lin, self.source, self.target = (
            nn.Linear(width, out),
            nn.Parameter(torch.randn(out)),
            nn.Parameter(torch.randn(out)),
        )

    def forward(self, x, edges):
        nodes = x.shape[0]
        edges = edges[:, edges[0] != edges[1]]
        loops = torch.arange(nodes).expand(2, -1)
        source, target = torch.cat([edges, loops], 1)
        h = self.lin(x)
        if source.numel() == 0:  # never, if there is a node
            return h
        score = F.leaky_relu((h @ self.source)[source] + (h @ self.target)[target], 0.2)
        most = torch.zeros(nodes, dtype=x.dtype).scatter_reduce(
            0, target, score.detach(), "amax", include_self=False
        )
        weight = (score - most[target]).exp()
        total = torch.zeros(nodes, dtype=x.dtype).index_add(0, target, weight)
        return torch.zeros_like(h).index_add(0, target, (weight / total[target])[:, None] * h[source])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Attention(6, 8), Attention(8, 3)

    def forward(self, x, edges):
        return self.last(F.elu(self.first(x, edges)), edges)


def _graphs():
    torch.manual_seed(1)
    for nodes, edges in ((10, 30), (10, 30), (12, 31), (7, 50), (5, 0), (9, 3), (1, 4)):
        yield torch.randn(nodes, 6, dtype=torch.float64), torch.randint(nodes, (2, edges))


@pytest.mark.parametrize("whole_step", [False, True])
def test_training_on_changing_graphs_is_one_trace_of_any_sizes(whole_step):
    def train(compile):
        model = Net().double()
        run = model if whole_step else compile(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, edges):
            optimizer.zero_grad()
            loss = run(x, edges).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step = compile(step) if whole_step else step
        return [step(x, edges).detach() for x, edges in _graphs()], model.state_dict()

    compiled = equal_eager(train, staticrt.compile_step if whole_step else staticrt.compile)
    report = compiled.explain()
    assert report.eager == (), report
    assert len(report.traces) <= 3, report  # of constant sizes, of any sizes, and of one node
    assert whole_step or joint_calls(compiled) == 7


def test_without_a_node_the_branch_is_another_one():
    torch.manual_seed(0)
    model = Net().double()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for x, edges in [*_graphs(), (torch.zeros(0, 6, dtype=torch.float64), torch.zeros(2, 0).long())]:
            torch.testing.assert_close(compiled(x, edges), model(x, edges))
