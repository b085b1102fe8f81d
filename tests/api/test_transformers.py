"""Ten architectures of `transformers`, from small configs with random weights: one trace for all sizes."""

import copy
import warnings

import pytest
import torch
from torch.utils import _pytree as pytree

import staticrt
from tests.support.transformer_sizes import GPT2, ROTARY, SMALL, T5, VIT, WHISPER

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()


def tokens(batch, length):
    return torch.randint(0, 99, (batch, length))


def image(batch, height, width):
    return torch.randn(batch, 3, height, width)


def bert():
    config = transformers.BertConfig(**SMALL)

    def inputs(batch, length):
        return (), {
            "input_ids": tokens(batch, length),
            "attention_mask": torch.ones(batch, length, dtype=torch.long),
        }

    return transformers.BertModel(config), inputs, (8, 12)


def gpt2():
    config = transformers.GPT2Config(**GPT2)
    return transformers.GPT2LMHeadModel(config), lambda b, s: ((tokens(b, s),), {}), (8, 12)


def t5():
    config = transformers.T5Config(**T5)

    def inputs(batch, length):
        return (), {"input_ids": tokens(batch, length), "decoder_input_ids": tokens(batch, length - 2)}

    return transformers.T5ForConditionalGeneration(config), inputs, (8, 12)


def llama():
    config = transformers.LlamaConfig(**ROTARY)
    return transformers.LlamaForCausalLM(config), lambda b, s: ((tokens(b, s),), {}), (8, 12)


def vit():
    config = transformers.ViTConfig(**VIT)

    def inputs(batch, size):
        return (image(batch, size, size + 8),), {"interpolate_pos_encoding": True}

    return transformers.ViTForImageClassification(config), inputs, (40, 56)


def resnet():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=5)
    return transformers.ResNetForImageClassification(config), lambda b, s: ((image(b, s, s),), {}), (32, 48)


def mobilenet_v2():
    config = transformers.MobileNetV2Config(depth_multiplier=0.25, num_labels=5, image_size=32)
    model = transformers.MobileNetV2ForImageClassification(config)
    return model, lambda b, s: ((image(b, s, s),), {}), (32, 64)


def whisper():
    config = transformers.WhisperConfig(**WHISPER)

    def inputs(batch, length):
        return (torch.randn(batch, 8, 60),), {"decoder_input_ids": tokens(batch, length)}

    return transformers.WhisperForConditionalGeneration(config), inputs, (8, 12)


def convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=5)
    return transformers.ConvNextForImageClassification(config), lambda b, s: ((image(b, s, s),), {}), (64, 96)


def mamba():
    config = transformers.MambaConfig(vocab_size=99, hidden_size=32, state_size=8, num_hidden_layers=2)
    return transformers.MambaForCausalLM(config), lambda b, s: ((tokens(b, s),), {}), (8, 12)


ARCHITECTURES = [bert, gpt2, t5, llama, vit, resnet, mobilenet_v2, whisper, convnext, mamba]


def assert_equal_results(got, want):
    got_leaves, got_spec = pytree.tree_flatten(got)
    want_leaves, want_spec = pytree.tree_flatten(want)
    assert type(got) is type(want)
    assert len(got_leaves) == len(want_leaves)
    for g, w in zip(got_leaves, want_leaves, strict=True):
        if isinstance(w, torch.Tensor):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
        else:
            assert type(g) is type(w)
    for name in ("past_key_values", "cache_params"):
        cache = getattr(want, name, None)
        if cache is not None:
            assert_equal_caches(getattr(got, name), cache)
    assert got_spec == want_spec


def assert_equal_caches(got, want):
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert_equal_caches(g, w)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_equal_caches(got[key], want[key])
    elif hasattr(want, "__dict__") and not isinstance(want, type):
        assert_equal_caches(vars(got), vars(want))


@pytest.mark.parametrize("build", ARCHITECTURES, ids=lambda f: f.__name__)
def test_architecture_equals_eager_with_one_trace(build):
    torch.manual_seed(0)
    model, inputs, sizes = build()
    model.eval()
    compiled = staticrt.compile(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for batch, size in [(1, sizes[0]), (2, sizes[0]), (2, sizes[1]), (1, sizes[1]), (1, sizes[0])]:
            args, kwargs = inputs(batch, size)
            want = model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
            assert_equal_results(compiled(*args, **kwargs), want)
    report = compiled.explain()
    assert len(report.traces) == 1, report
    assert not report.eager, report


@torch.no_grad()
def test_decoding_with_a_cache_equals_eager():
    """Three steps; each step changes the caller's cache object in place, as eager does."""
    torch.manual_seed(0)
    model, _inputs, _sizes = llama()
    model.eval()
    compiled = staticrt.compile(model)
    prompt = tokens(2, 5)
    want, got = model(prompt, use_cache=True), compiled(prompt, use_cache=True)
    want_cache, got_cache = want.past_key_values, got.past_key_values
    for _step in range(4):
        token = tokens(2, 1)
        want = model(token, past_key_values=want_cache)
        got = compiled(token, past_key_values=got_cache)
        assert got.past_key_values is got_cache
        torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
        assert_equal_caches(got_cache, want_cache)
    assert not compiled.explain().eager, compiled.explain()


@pytest.mark.parametrize("build", [bert, gpt2, t5, llama, vit, whisper], ids=lambda f: f.__name__)
@torch.no_grad()
def test_attention_that_a_model_writes_out_is_one_call(build):
    """Padding hides whole rows too: the mean of all values there, as in eager."""
    torch.manual_seed(0)
    model, inputs, sizes = build()
    model.eval()
    model.set_attn_implementation("eager")
    compiled = staticrt.compile(model)
    for size in sizes:
        args, kwargs = inputs(3, size)
        if "attention_mask" in kwargs:
            kwargs["attention_mask"][0] = 0
            kwargs["attention_mask"][1, size // 2 :] = 0
        want = model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        for _ in range(2):
            assert_equal_results(compiled(*copy.deepcopy(args), **copy.deepcopy(kwargs)), want)
    calls = [row.name for row in compiled.profile(*args, **kwargs).rows]
    assert not any("softmax" in name for name in calls)
    assert any("scaled_dot_product_attention" in name for name in calls)
