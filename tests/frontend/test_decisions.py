"""Branches that data decides are followed, and every call checks that data still decides so."""

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import InputError
from staticrt.tuning import MAX_BRANCHES
from tests.support.threads import in_threads


def traces(compiled):
    return len(compiled.explain().traces)


def runs_whole(compiled):
    report = compiled.explain()
    return not report.eager and not report.notes


def positive(x):
    return x * 2 if x.sum() > 0 else x - 1


def counted(x, n):
    y = x
    for _ in range(int(n)):
        y = y + x
    return y


def halved(x):
    while x.abs().max() >= 1:
        x = x / 2
    return x


def checked(x):
    assert (x > 0).all(), "must be positive"
    return x.log()


def after_a_write(x):
    y = x.clone()
    y[0] = 3
    y.mul_(2)
    return y + 1 if y.sum() > 10 else y - 1


def draws(x):
    noise = torch.rand_like(x)
    return x + noise if noise.mean() > 0.5 else x - torch.rand_like(x)


class AttendsThenSorts(nn.Module):
    """Attention without dropout, then experts whose shares are a list of numbers that data decides."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x):
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        rows = x.flatten(0, 1)
        chosen = self.gate(rows).argmax(-1)
        shares = nn.functional.one_hot(chosen, 3).sum(0).tolist()
        order = chosen.argsort(stable=True)
        parts = rows[order].split(shares)
        out = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return torch.empty_like(out).index_copy(0, order, out).view_as(x)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, column = torch.where(chosen == number)
            if row.numel() > 0:
                out.index_add_(0, row, expert(x[row]) * weights[row, column, None])
        return out


@torch.no_grad()
@pytest.mark.parametrize("function", [positive, after_a_write], ids=lambda f: f.__name__)
def test_both_branches_are_traced_whole(function):
    compiled = staticrt.compile(function)
    for seed in range(12):
        torch.manual_seed(seed)
        x = torch.randn(3 + seed % 4)
        before = x.clone()
        torch.testing.assert_close(compiled(x), function(x))
        assert torch.equal(x, before)
    assert traces(compiled) == 2
    assert runs_whole(compiled)


def noisy(x):
    noise = torch.rand_like(x)
    return x + noise if x.sum() > 0 else x - torch.rand_like(x)


@torch.no_grad()
@pytest.mark.parametrize(("function", "number"), [(noisy, 2), (draws, None)])
def test_a_failed_check_draws_no_random_numbers(function, number):
    compiled = staticrt.compile(function)
    for seed in range(12):
        torch.manual_seed(seed)
        x = torch.randn(5)
        before = torch.get_rng_state()
        want = function(x)
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        assert torch.equal(compiled(x), want)
        assert torch.equal(torch.get_rng_state(), after)
    assert number in (None, traces(compiled))


@torch.no_grad()
def test_more_ways_than_traces_are_worth():
    compiled = staticrt.compile(counted)
    x = torch.randn(4)
    for n in [*range(1, MAX_BRANCHES + 3), 2, 1]:
        torch.testing.assert_close(compiled(x, torch.tensor(n)), counted(x, torch.tensor(n)))
    assert any(f"more than {MAX_BRANCHES} ways" in note for note in compiled.explain().notes)


@torch.no_grad()
def test_loops_end_where_data_says():
    compiled = staticrt.compile(halved)
    for scale in (0.5, 3.0, 0.25, 5.0, 3.5):
        x = torch.linspace(-scale, scale, 7)
        assert torch.equal(compiled(x), halved(x))
    assert runs_whole(compiled)


@torch.no_grad()
def test_experts_of_a_mixture():
    torch.manual_seed(0)
    model = Experts().eval()
    compiled = staticrt.compile(model)
    for rows in (9, 12, 9, 30, 1, 2, 1, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), model(x))


@torch.no_grad()
def test_attention_that_drops_nothing_draws_nothing():
    torch.manual_seed(0)
    model = AttendsThenSorts().eval()
    compiled = staticrt.compile(model)
    for batch, length in ((2, 9), (1, 9), (3, 5)):
        x = torch.randn(batch, length, 8)
        torch.testing.assert_close(compiled(x), model(x))
    assert runs_whole(compiled)
    assert traces(compiled) == 1


@torch.no_grad()
def test_a_branch_on_a_number_computed_of_a_drawn_one():
    def moved(x):
        steps = torch.randint(1, 4, ()).item()
        return x + steps if steps + steps > 4 else x - steps

    compiled = staticrt.compile(moved)
    for seed in range(8):
        x = torch.randn(6)
        torch.manual_seed(seed)
        want = moved(x)
        torch.manual_seed(seed)
        assert torch.equal(compiled(x), want)
    assert "_schema" not in str(compiled.explain())


@torch.no_grad()
def test_a_failed_assertion_is_eagers():
    compiled = staticrt.compile(checked)
    good = torch.tensor([1.0, 2.0])
    assert torch.equal(compiled(good), checked(good))
    for _ in range(3):
        with pytest.raises(AssertionError, match="must be positive"):
            compiled(-good)
        assert torch.equal(compiled(good), checked(good))


@torch.no_grad()
def test_causal_masks_of_transformer_encoders():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    compiled = staticrt.compile(model)
    for length in (5, 7, 4, 5):
        x = torch.randn(2, length, 8)
        causal = nn.Transformer.generate_square_subsequent_mask(length)
        almost = causal.clone()
        almost[0, -1] = 0.0
        for mask in (causal, almost, torch.zeros(length, length)):
            torch.testing.assert_close(compiled(x, mask=mask), model(x, mask=mask))
    assert runs_whole(compiled)


@torch.no_grad()
def test_arguments_are_not_written_while_tracing():
    def f(x):
        x.add_(1)
        return x * 2 if x.sum() > 0 else x

    for sign in (1, -1):
        x = torch.full((3,), 5.0 * sign)
        twin = x.clone()
        compiled = staticrt.compile(f)
        assert torch.equal(compiled(x), f(twin))
        assert torch.equal(x, twin)
        x, twin = -x, -twin
        assert torch.equal(compiled(x), f(twin))
        assert torch.equal(x, twin)


def test_threads_decide_each_for_itself():
    compiled = staticrt.compile(positive)
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(50):
                x = torch.randn(5, generator=generator)
                if not torch.equal(compiled(x), positive(x)):
                    wrong.append(x)

    in_threads(work, range(8))
    assert not wrong


@torch.no_grad()
def test_archives_refuse_data_that_no_trace_is_for(tmp_path):
    compiled = staticrt.compile(positive)
    compiled(torch.ones(3))
    staticrt.save(compiled, tmp_path / "model.pt2", exported_program=False)
    loaded = staticrt.load(tmp_path / "model.pt2")
    torch.testing.assert_close(loaded(torch.ones(3)), compiled(torch.ones(3)))
    with pytest.raises(InputError, match="data decides a branch otherwise"):
        loaded(-torch.ones(3))
