"""What tests of joint traces share."""

import torch

import staticrt


def joint(function, **options):
    return staticrt.compile(function, joint_trace=True, **options)


def joint_calls(compiled):
    return sum(r.calls for r in compiled.explain().traces if r.executor == "native node, joint trace")


def fast_calls(compiled):
    return compiled._executor.fast_calls


def notes(compiled):
    return " ".join(compiled.explain().notes)


def both(function, *inputs, **options):
    """Results and gradients of a function of tensors, compiled and eager, from copies of the same inputs."""
    found = []
    compiled = joint(function, **options)
    for run in (compiled, function):
        own = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        torch.manual_seed(3)
        out = run(*own)
        outs = [t for t in (out if isinstance(out, tuple) else (out,)) if t.requires_grad]
        sum((t * t).sum() for t in outs).backward()
        found.append((out, [x.grad for x in own], own))
    torch.testing.assert_close(found[0], found[1])
    return compiled


def same_gradients(model, eager):
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
