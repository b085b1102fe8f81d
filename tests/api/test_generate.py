"""Token by token: `generate` of `transformers`, and loops by hand over its caches."""

import copy

import pytest
import torch

import staticrt
from tests.support.transformer_sizes import GPT2, ROTARY, T5, WHISPER

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()


def gpt2():
    config = transformers.GPT2Config(**GPT2, eos_token_id=None, bos_token_id=0)
    return transformers.GPT2LMHeadModel(config), {"input_ids": torch.randint(1, 99, (2, 7))}


def llama():
    config = transformers.LlamaConfig(**ROTARY, eos_token_id=None)
    return transformers.LlamaForCausalLM(config), {"input_ids": torch.randint(1, 99, (2, 7))}


def mistral():
    """Its cache keeps a window of the last tokens and counts the others."""
    config = transformers.MistralConfig(**ROTARY, sliding_window=10, eos_token_id=None)
    return transformers.MistralForCausalLM(config), {"input_ids": torch.randint(1, 99, (2, 7))}


def t5():
    config = transformers.T5Config(**T5, eos_token_id=None)
    return transformers.T5ForConditionalGeneration(config), {"input_ids": torch.randint(1, 99, (2, 9))}


def whisper():
    config = transformers.WhisperConfig(
        **{**WHISPER, "d_model": 32, "eos_token_id": None}, suppress_tokens=None, begin_suppress_tokens=None
    )
    return transformers.WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 8, 60)}


def fast_calls(compiled):
    return compiled._executor.fast.calls


OPTIONS = {
    "greedy": {"do_sample": False},
    "static cache": {"do_sample": False, "cache_implementation": "static"},
    "beams": {"do_sample": False, "num_beams": 3},
    "sampling": {"do_sample": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("build", [gpt2, llama, mistral, t5, whisper], ids=lambda f: f.__name__)
@torch.no_grad()
def test_generated_tokens_equal_eagers_and_need_no_python(build, options):
    torch.manual_seed(0)
    model, inputs = build()
    model.eval()
    eager = copy.deepcopy(model)
    model.forward = staticrt.compile(model.forward)
    options = {**options, "max_new_tokens": 12, "min_new_tokens": 12, "pad_token_id": 0}
    for seed in range(3):
        torch.manual_seed(seed)
        want = eager.generate(**copy.deepcopy(inputs), **options)
        torch.manual_seed(seed)
        before = fast_calls(model.forward)
        got = model.generate(**copy.deepcopy(inputs), **options)
        assert torch.equal(got, want)
    assert fast_calls(model.forward) == before + 12


@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
@torch.no_grad()
def test_a_loop_by_hand_over_a_cache_object(kind):
    torch.manual_seed(0)
    model, inputs = llama()
    model.eval()
    compiled = staticrt.compile(model)

    def cache():
        config = model.config
        return (
            transformers.DynamicCache()
            if kind == "DynamicCache"
            else transformers.StaticCache(config, max_cache_len=24)
        )

    for _prompt in range(3):
        want_cache, got_cache = cache(), cache()
        token = inputs["input_ids"]
        before = fast_calls(compiled)
        for _step in range(9):
            want = model(token, past_key_values=want_cache)
            got = compiled(token, past_key_values=got_cache)
            assert got.past_key_values is got_cache
            torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
            for mine, theirs in zip(got_cache.layers, want_cache.layers, strict=True):
                torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-5)
            assert got_cache.get_seq_length() == want_cache.get_seq_length()
            token = want.logits[:, -1:].argmax(-1)
    assert fast_calls(compiled) == before + 9
    assert len(compiled.explain().traces) == 2


@torch.no_grad()
def test_generate_of_a_compiled_module_runs_compiled():
    torch.manual_seed(0)
    model, inputs = gpt2()
    model.eval()
    compiled = staticrt.compile(model)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    for _ in range(3):
        before = fast_calls(compiled)
        assert torch.equal(compiled.generate(**inputs, **options), model.generate(**inputs, **options))
    assert fast_calls(compiled) == before + 8
    assert "forward" not in vars(model)


def test_a_generate_of_ones_own_sees_the_module():
    """Bound to something that calls the compiled module and is the module in everything else."""

    class Base(torch.nn.Module):
        def generate(self, x, times):
            for _ in range(times):
                x = self(x)
            self.last = x
            return x

    class Net(Base):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(3, 3)

        def forward(self, x):
            return torch.tanh(self.lin(x))

        def generate(self, x, times):
            assert type(self).__name__ == "Net"
            assert isinstance(self, Net)
            twin = copy.deepcopy(self)
            assert type(twin) is type(copy.copy(self)) is Net
            twin.lin = torch.nn.Linear(3, 5)
            assert twin(x).shape[-1] == 5
            return super().generate(x, times), next(self.modules()), self

    net = Net().eval()
    compiled = staticrt.compile(net)
    with torch.no_grad():
        for x in (torch.randn(2, 3), torch.randn(4, 3)):
            want = x
            for _ in range(3):
                want = net(want)
            got, first, me = compiled.generate(x, 3)
            torch.testing.assert_close(got, want)
            assert net.last is got
            assert me.lin is net.lin
            assert first.state_dict().keys() == net.state_dict().keys()
    assert fast_calls(compiled) > 0
    assert compiled.generate.__func__ is Net.generate
