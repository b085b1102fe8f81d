"""Networks trained through the compiled forward and backward: parameters and optimizer state equal to eager's.

The default run takes a few; `STATICRT_ALL_MODELS=1 pytest tests/training/test_models.py` takes 29 architectures of
transformers through four entry points and all of the zoo, 20 steps each.
"""

import copy
import importlib
import os
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import staticrt
from staticrt.models import zoo
from staticrt.training import optim

STEPS = 20
EVERYTHING = bool(os.environ.get("STATICRT_ALL_MODELS"))


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


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
    assert any(report.route == "training" and report.calls for report in explanation.traces), explanation
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


def _train_architecture(name, way, steps):
    """Train one architecture of `transformers` through one compiler and compare with eager."""
    architectures = importlib.import_module("tests.support.architectures")
    torch.manual_seed(0)
    model, inputs = architectures.ARCHITECTURES[name]()
    batches = [inputs(2), inputs(3)]
    models = {"eager": copy.deepcopy(model), way: model}
    states = {}
    for kind, each in models.items():
        make = optim.AdamW if kind == "step" else torch.optim.AdamW
        optimizer = make(each.parameters(), lr=1e-3, eps=1e-3)
        run = each
        if kind == "compile":
            run = staticrt.compile(each)
        elif kind in ("a", "auto"):
            run = torch.compile(each, backend="staticrt", options={"backward_node": kind})

        def step(run=run, optimizer=optimizer, **arguments):
            optimizer.zero_grad()
            out = run(**arguments)
            loss = out.loss if getattr(out, "loss", None) is not None else _loss(out)
            loss.backward()
            optimizer.step()
            return loss

        step = staticrt.compile_step(step) if kind == "step" else step
        losses = []
        for number in range(steps):
            for seed in (torch.manual_seed, random.seed, np.random.seed):
                seed(number)
            losses.append(step(**batches[number % 2]).item())
        states[kind] = losses, each.state_dict(), optimizer.state_dict()["state"]
    torch.testing.assert_close(states[way], states["eager"], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("way", ["auto", "compile"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_transformers(name, way):
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _train_architecture(name, way, 4)


@pytest.mark.parametrize("name", ["t5", "vit", "distilbert"])
def test_whole_steps_of_transformers(name):
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _train_architecture(name, "step", 4)


if EVERYTHING:

    @pytest.mark.parametrize("way", ["a", "auto", "compile", "step"])
    @pytest.mark.parametrize("name", importlib.import_module("tests.support.architectures").ARCHITECTURES)
    def test_every_architecture(name, way):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _train_architecture(name, way, STEPS)

    @pytest.mark.parametrize("name", [e.name for e in zoo.ENTRIES if e.name not in TRAINED])
    def test_every_network_of_the_zoo(name):
        entry = zoo.get(name)
        model = entry.build().train()
        variant = min(entry.variants, key=lambda v: sum(t.numel() for t in entry.inputs(0, v)))
        batches = [(entry.inputs(seed, variant), {}) for seed in range(3)]
        _equal_training(model, batches, STEPS, OPTIMIZERS["sgd"])
