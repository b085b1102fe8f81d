"""Every network of the zoo: deterministic, different per variant, and traced without specialising a size."""

import pytest
import torch
from torch.utils import _pytree as pytree

from staticrt.errors import OptionError
from staticrt.models import zoo

NAMES = [entry.name for entry in zoo.ENTRIES]


@pytest.fixture(autouse=True)
def one_thread_without_gradients():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def test_the_registry_holds_what_the_project_promises():
    assert len(NAMES) == len(set(NAMES))
    assert {
        *(
            "mlp",
            "wide_deep",
            "dlrm_b1",
            "dlrm_b64",
            "encoder_tiny",
            "bert_base",
            "gpt_prefill",
            "gpt_decode",
        ),
        *(
            "lstm_unrolled",
            "lstm_tagger",
            "resnet18",
            "resnet50",
            "mobilenet_v2",
            "convnext",
            "unet",
            "vit_s",
        ),
        *("graph_network", "pointwise_norm", "mamba_steps", "mamba_parallel", "control_flow"),
    } == set(NAMES)
    overhead = {entry.name for entry in zoo.select([zoo.OVERHEAD_BOUND])}
    assert {"mlp", "wide_deep", "dlrm_b1", "encoder_tiny", "lstm_unrolled", "graph_network"} <= overhead
    assert {e.tag for e in zoo.ENTRIES} == {zoo.OVERHEAD_BOUND, zoo.COMPUTE_BOUND}


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_decides_weights_inputs_and_answer(name):
    entry = zoo.get(name)
    torch.manual_seed(1234)
    before = torch.random.get_rng_state()
    module, again, other = entry.build(3), entry.build(3), entry.build(4)
    inputs = entry.inputs(5, entry.trace_variant)
    assert torch.equal(torch.random.get_rng_state(), before), "building must leave torch's own seed alone"

    assert not any(part.training for part in module.modules())
    weights, same, different = module.state_dict(), again.state_dict(), other.state_dict()
    assert all(torch.equal(weights[key], same[key]) for key in weights)
    assert any(not torch.equal(weights[key], different[key]) for key in weights)
    for left, right in zip(inputs, entry.inputs(5, entry.trace_variant), strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(inputs[0], entry.inputs(6, entry.trace_variant)[0])
    kept = [x.clone() for x in inputs]
    answer, repeated = pytree.tree_leaves(module(*inputs)), pytree.tree_leaves(again(*inputs))
    for left, right in zip(answer, repeated, strict=True):
        assert torch.equal(left, right)
        assert left.isfinite().all()
        assert left.ndim == 0 or left.float().std() > 0, "a constant answer would hide errors"
    assert all(torch.equal(x, k) for x, k in zip(inputs, kept, strict=True)), "inputs are not written"


@pytest.mark.parametrize("name", NAMES)
def test_capture_keeps_every_varying_size_symbolic(name):
    entry = zoo.get(name)
    module = entry.build(0)
    example = entry.inputs(0, entry.trace_variant)
    # Dim.DYNAMIC makes torch.export raise where a size would become a constant.
    program = torch.export.export(module, example, dynamic_shapes=entry.dynamic_shapes(), strict=False)
    captured = program.module()
    shapes = []
    for variant in entry.variants:
        arguments = entry.inputs(1, variant)
        shapes.append([tuple(x.shape) for x in arguments])
        expected, got = pytree.tree_leaves(module(*arguments)), pytree.tree_leaves(captured(*arguments))
        assert len(expected) == len(got)
        for left, right in zip(expected, got, strict=True):
            torch.testing.assert_close(
                right, left, rtol=entry.rtol, atol=entry.atol * max(1.0, float(left.abs().max()))
            )
    assert len(set(map(str, shapes))) == len(shapes) >= 2, "variants must differ in shape"
    for argument, dims in enumerate(entry.dynamic):
        ranks = {len(shape[argument]) for shape in shapes}
        assert len(ranks) == 1
        varying = {d for d in range(ranks.pop()) if len({shape[argument][d] for shape in shapes}) > 1}
        assert varying <= set(dims), f"argument {argument} varies in {varying}, captured dynamic in {dims}"
        assert varying, f"argument {argument} never varies"


def test_decode_continues_prefill_exactly():
    """Prefill of 9 tokens equals prefill of 8 and one decode step on its cache."""
    prefill, decode = zoo.get("gpt_prefill").build(0), zoo.get("gpt_decode").build(0)
    tokens = torch.randint(0, 1000, (2, 9), generator=torch.Generator().manual_seed(0))
    whole = prefill(tokens)
    _logits, keys, values = prefill(tokens[:, :8])
    stepped = decode(tokens[:, 8:], keys, values)
    for left, right in zip(whole, stepped, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_parallel_scan_equals_the_recurrence():
    block = zoo.get("mamba_parallel").build(0).blocks[0]
    generator = torch.Generator().manual_seed(0)
    step = torch.rand(2, 11, block.inner, generator=generator)
    drive = torch.randn(2, 11, block.inner, generator=generator)
    write, read = torch.randn(2, 2, 11, block.states, generator=generator).unbind(0)
    decay = -torch.rand(block.inner, generator=generator)
    parallel = block.scan_parallel(step, decay, drive, write, read)
    block.steps = 11
    looped = block.scan_steps(step, decay.unsqueeze(1), drive, write, read)
    torch.testing.assert_close(parallel, looped, rtol=1e-4, atol=1e-5)


def test_control_flow_takes_both_branches_and_stops_early():
    entry = zoo.get("control_flow")
    module = entry.build(0)
    x = entry.inputs(0, "b8")[0]
    up, _steps = module(x + 3)
    down, _steps = module(x - 3)
    assert (up == 0).any(), "the ReLU branch has exact zeros"
    assert (down > 0).all(), "the sigmoid branch has none"
    assert int(module(torch.zeros_like(x))[1]) <= module.limit
    module.tolerance = 1e9
    assert int(module(x)[1]) == 0


def test_names_and_variants_that_do_not_exist_are_refused():
    with pytest.raises(OptionError, match=r"no model matches 'resnet51'\n  fix: choose from .*resnet50"):
        zoo.select(["resnet51"])
    with pytest.raises(OptionError, match=r"model 'mlp' has no variant 'b2'\n  fix: choose from b1, b8, b64"):
        zoo.get("mlp").inputs(0, "b2")
    assert [e.name for e in zoo.select(["resnet*", "mlp"])] == ["mlp", "resnet18", "resnet50"]
