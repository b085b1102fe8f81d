"""State, randomness and control flow of a loaded model are those of the saved one."""

import io

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import ArchiveError, InputError
from tests.support.saved_archives import archive_bytes, mlp, reload
from tests.support.threads import in_threads

pytestmark = pytest.mark.usefixtures("no_gradients")


def test_functions_and_closed_over_tensors():
    weight = torch.randn(4, 4)

    def function(x, *, bias):
        return x @ weight + bias

    compiled = staticrt.compile(function)
    x, bias = torch.randn(2, 4), torch.randn(4)
    compiled(x, bias=bias)
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer)
    torch.testing.assert_close(staticrt.load(buffer.getvalue())(x, bias=bias), function(x, bias=bias))


# -- state ------------------------------------------------------------------------------------------------------
class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("scratch", torch.ones(1), persistent=False)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        self.count.add_(x.sum(0))
        self.scratch.mul_(2)
        return self.norm(x) + self.count * self.scratch


def test_buffers_that_the_model_writes_are_state_of_the_loaded_model(tmp_path):
    model = Counter().train()
    x = torch.randn(4, 3)
    path = tmp_path / "model.pt2"
    compiled = staticrt.compile(model)
    compiled(x)
    staticrt.save(compiled, path)
    one, two = staticrt.load(path), staticrt.load(path)
    before = path.read_bytes()
    for _ in range(3):
        torch.testing.assert_close(one(x), model(x))
    assert list(one.state_dict()) == [
        *dict(model.named_parameters()),
        *(n for n in dict(model.named_buffers()) if n != "scratch"),
    ]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], value)
    assert dict(two.named_buffers())["scratch"].item() == 2.0
    assert path.read_bytes() == before


def test_a_model_loaded_in_inference_mode_is_like_any_other():
    model = Counter().train()
    x = torch.randn(4, 3)
    data = archive_bytes(model, (x,))
    with torch.inference_mode():
        loaded = staticrt.load(data)
        torch.testing.assert_close(loaded(x), model(x))
    for _ in range(2):
        torch.testing.assert_close(loaded(x), model(x))
    assert not any(tensor.is_inference() for tensor in loaded.state_dict().values())


def test_load_state_dict_is_seen_by_the_next_call():
    model, other = mlp(), mlp()
    x = torch.randn(2, 16)
    loaded = reload(model, (x,))
    for _ in range(3):
        torch.testing.assert_close(loaded(x), model(x))
    loaded.load_state_dict(other.state_dict())
    for _ in range(2):
        torch.testing.assert_close(loaded(x), other(x))
    with pytest.raises(InputError, match=r"missing .*'0\.bias'"):
        loaded.load_state_dict({"0.weight": torch.zeros(32, 16)})
    with pytest.raises(InputError, match=r"0.weight has shape \[1\], expected \[32, 16\]"):
        loaded.load_state_dict({"0.weight": torch.zeros(1)}, strict=False)
    torch.testing.assert_close(loaded(x), other(x))


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("row", self.embed.weight.detach()[3])

        def forward(self, tokens):
            return self.head(self.embed(tokens)) + self.row.sum()

    model = Tied().eval()
    tokens = torch.tensor([[1, 2, 3]])
    loaded = reload(model, (tokens,))
    torch.testing.assert_close(loaded(tokens), model(tokens))
    state = loaded.state_dict()
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    state["head.weight"].mul_(2)
    model.embed.weight.data.mul_(2)
    torch.testing.assert_close(state["row"], model.row)
    torch.testing.assert_close(loaded(tokens), model(tokens))


def test_random_operators_draw_as_the_model_does():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).train()

    def function(x):
        return model(x) + torch.randn(x.shape[0], 8)

    x = torch.randn(4, 8)
    loaded = reload(function, (x,))
    for seed in range(4):
        torch.manual_seed(seed)
        expected = function(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(loaded(x), expected)


def test_control_flow():
    def function(x, limit):
        halved = torch.cond(x.sum() > 0, lambda x: x / 2, lambda x: -x, (x,))

        def grow(i, value):
            return i + 1, value * 2

        steps, value = torch.while_loop(
            lambda i, value: value.abs().max() < limit, grow, (torch.tensor(0), halved)
        )
        return steps, value

    x = torch.randn(3, 4).abs()
    loaded = reload(function, (x, torch.tensor(50.0)))
    for sign in (1, -1, 1):
        for limit in (2.0, 50.0):
            expected = function(sign * x, torch.tensor(limit))
            got = loaded(sign * x, torch.tensor(limit))
            torch.testing.assert_close(got, expected)


# -- environment ------------------------------------------------------------------------------------------------
def triple(library, schema):
    """Registers archive_test::triple with this schema."""
    library.define(f"triple{schema}")
    library.impl("triple", lambda x, *_rest: x * 3, "CompositeExplicitAutograd")
    torch.library.register_fake("archive_test::triple", lambda x, *_rest: torch.empty_like(x), lib=library)


def test_custom_operators_must_be_registered_as_they_were():
    def function(x):
        return torch.ops.archive_test.triple(x) + 1

    x = torch.ones(4)
    with torch.library._scoped_library("archive_test", "DEF") as library:
        triple(library, "(Tensor x) -> Tensor")
        data = archive_bytes(function, (torch.ones(3),))
        loaded = staticrt.load(data, allow_operators=["archive_test::triple"])
        for _ in range(3):
            assert loaded(x).tolist() == [4.0] * 4
        del loaded
    with pytest.raises(
        ArchiveError, match="calls operator 'archive_test::triple', which is not registered"
    ) as absent:
        staticrt.load(data)
    assert "fix: import the package" in str(absent.value)
    with torch.library._scoped_library("archive_test", "DEF") as library:
        triple(library, "(Tensor x, int k=3) -> Tensor")
        with pytest.raises(ArchiveError, match="with another schema") as other:
            staticrt.load(data)
        assert "saved: archive_test::triple(Tensor x) -> Tensor" in str(other.value)


def test_threads():
    model = mlp()
    loaded = reload(model, (torch.randn(4, 16),))
    inputs = [torch.randn(batch, 16) for batch in (1, 2, 3, 5, 8, 13, 21, 34)]
    expected = [model(x) for x in inputs]
    failures = []

    def work(number):
        with torch.no_grad():
            for k in range(200):
                index = (number + k) % len(inputs)
                if not torch.allclose(loaded(inputs[index]), expected[index], atol=1e-5):
                    failures.append(index)

    in_threads(work, range(8))
    assert not failures
