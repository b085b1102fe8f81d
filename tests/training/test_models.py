"""Networks trained through the compiled forward and backward: parameters and optimizer state equal to eager's."""

import copy
import importlib.util
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import staticrt
from staticrt.models import zoo

STEPS = 20


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _loss(out):
    leaves = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return sum((leaf.float() ** 2).mean() for leaf in leaves)


def _train(run, model, batches, make_optimizer, steps):
    optimizer = make_optimizer(model.parameters())
    losses = []
    for step in range(steps):
        args, kwargs = batches[step % len(batches)]
        torch.manual_seed(step)
        loss = _loss(run(*args, **kwargs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, optimizer.state_dict()["state"]


def _equal_training(model, batches, steps, make_optimizer, rtol=1e-3, atol=1e-4):
    theirs = copy.deepcopy(model)
    compiled = staticrt.compile(model)
    mine = _train(compiled, model, batches, make_optimizer, steps)
    wanted = _train(theirs, theirs, batches, make_optimizer, steps)
    torch.testing.assert_close(mine, wanted, rtol=rtol, atol=atol)
    torch.testing.assert_close(model.state_dict(), theirs.state_dict(), rtol=rtol, atol=atol)
    explanation = compiled.explain()
    assert any(report.route == "training" and report.calls for report in explanation.captures), explanation
    assert not any(item.calls for item in explanation.eager), explanation


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, eps=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-3),
}
# Zoo networks small enough to train in seconds, each with an optimizer.
TRAINED = {
    "mlp": "adam",
    "wide_deep": "sgd",
    "dlrm_b1": "sgd",
    "encoder_tiny": "adamw",
    "lstm_tagger": "adam",
    "graph_network": "sgd",
    "pointwise_norm": "sgd",
}


@pytest.mark.parametrize("name", TRAINED)
def test_zoo(name):
    entry = zoo.get(name)
    model = entry.build().train()
    variant = min(entry.variants, key=lambda v: sum(t.numel() for t in entry.inputs(0, v)))
    batches = [(entry.inputs(seed, variant), {}) for seed in range(3)]
    _equal_training(model, batches, STEPS, OPTIMIZERS[TRAINED[name]])


def test_convolutions_with_batch_norm_and_dropout():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, groups=2),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Dropout(0.3),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
    )
    batches = [((torch.randn(size, 3, 12, 12),), {}) for size in (4, 4, 3)]
    _equal_training(model, batches, STEPS, OPTIMIZERS["adam"])


def _architectures():
    path = Path(__file__).resolve().parents[1] / "test_transformers.py"
    spec = importlib.util.spec_from_file_location("architectures_of_transformers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {build.__name__: build for build in module.ARCHITECTURES}


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_transformers(name):
    pytest.importorskip("transformers")
    build = _architectures()[name]
    torch.manual_seed(0)
    model, inputs, sizes = build()
    model.train()
    batches = [inputs(2, sizes[0]), inputs(3, sizes[0])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _equal_training(model, batches, 4, OPTIMIZERS["adamw"])
