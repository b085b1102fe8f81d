"""Random programs of views, writes through views, casts, branches on sizes and reductions against eager.

Numbers are float64 and operators continuous, so results are close or wrong. A failure prints the program.
"""

import random

import pytest
import torch
import torch.nn.functional as F

import staticrt

SHAPES = [(3, 4), (2, 5), (1, 4), (3, 1), (3, 4)]

VALUES = [  # of a, b: any earlier tensors
    "{a}.sin()",
    "torch.relu({a})",
    "{a} * 0.5 + 1",
    "{a} - {b}",
    "{a} * {b}",
    "torch.maximum({a}, {b})",
    "torch.where({a} > 0, {a}, {b})",
    "F.gelu({a})",
    "{a}.softmax(-1)",
    "{a}.cumsum({d})",
    "{a}.clamp(-1, 1)",
    "{a}.transpose({d}, {e})",
    "{a}.unsqueeze({d})",
    "{a}.squeeze({d})",
    "{a}.squeeze()",
    "{a}.flatten()",
    "{a}.reshape({a}.shape[0], -1)",
    "{a}.reshape(-1)",
    "{a}[..., ::2]",
    "{a}[1:]",
    "{a}[..., 1:]",
    "{a}[0]",
    "{a}.select({d}, -1)",
    "{a}.flip({d})",
    "{a}.roll(1, {d})",
    "{a}.unbind({d})[-1]",
    "{a}.chunk(2, {d})[0]",
    "{a}.mT.contiguous()",
    "{a}.movedim(0, -1)",
    "{a}.diagonal()",
    "{a}.expand(2, *{a}.shape)",
    "{a}.tile(2)",
    "{a}.sum({d})",
    "{a}.mean({d}, keepdim=True)",
    "{a}.amax({d})",
    "{a}.var({d}, correction=0)",
    "{a}.norm(dim={d})",
    "torch.cat([{a}, {a}], {d})",
    "torch.cat([{a}, {b}], {d})",
    "torch.stack([{a}, {b}])",
    "F.pad({a}, (1, 2))",
    "{a} @ {a}.mT",
    "{a} @ self.w",
    "F.linear({a}, self.w)",
    "F.layer_norm({a}, {a}.shape[-1:])",
    "{a}.index_select({d}, torch.arange({a}.shape[{d}] - 1, -1, -1))",
    "{a}.gather({d}, torch.zeros_like({a}, dtype=torch.long))",
    "{a}.float().double()",
    "({a} > 0).double()",
    "({a} > 0).sum({d}) + {b}.mean()",
    "torch.zeros_like({a})",
    "({a} * 2 if {a}.shape[0] > 2 else {a} - 1)",
    "({a} + {a}.shape[0])",
    "({a}.mean(0) if {a}.dim() > 2 else {a})",
]
PLACES = [
    "{a}", "{a}[0]", "{a}[..., 1:]", "{a}[..., ::2]", "{a}.mT", "{a}[:, 0]", "{a}.flatten()", "{a}.unbind(0)[0]",
    "{a}.chunk(2, -1)[0]", "{a}.transpose(0, -1)", "{a}.diagonal()", "{a}[..., ::2].flatten()", "{a}.reshape(-1)",
    "{a}.view({a}.shape[0], -1)[:, 1:]", "{a}.unsqueeze(0)", "{a}.squeeze()", "{a}.mT.contiguous()",
]  # fmt: skip
WRITES = [
    "{v}.add_(1)", "{v}.mul_(0.5)", "{v}.relu_()", "{v}.copy_({b})", "{v}.add_({b})", "{v}.masked_fill_({v} > 0, 0.5)",
    "{v}.copy_({v}.flip(-1))", "{v}.add_({v})", "{v}.cumsum_(-1)", "{v}.sigmoid_()", "{v}.triu_()", "{v}.fill_(2.0)",
    "{v}.index_add_(0, torch.tensor([0]), {v}[-1:])", "{v}.index_fill_(0, torch.tensor([0]), 1.5)", "{v}[..., 0] = 3.0",
    "{v}[0] += {v}[-1]", "{v}.scatter_(0, torch.zeros_like({v}, dtype=torch.long)[:1], 2.0)",
]  # fmt: skip


def inputs(rows, columns, call, spaced):
    generator = torch.Generator().manual_seed(100 * rows + 10 * columns + call)
    x = torch.randn(rows, columns, 6, generator=generator, dtype=torch.float64)
    y = torch.randn(columns, 6, generator=generator, dtype=torch.float64)
    return (x[..., ::2].clone().repeat(1, 1, 4)[..., :6], y.t().contiguous().t()) if spaced else (x, y)


def program(seed):
    """Lines that run at the first shape, and the names of the results."""
    choose = random.Random(seed)
    scope = {"torch": torch, "F": F, "self": Weights()}
    scope["x"], scope["y"] = inputs(*SHAPES[0], 0, False)
    names, lines = ["x", "y"], []
    for _ in range(60):
        if len(lines) == 8:
            break
        a, b = choose.choice(names[-4:]), choose.choice(names)
        rank = scope[a].dim()
        d, e = (choose.randrange(-rank, rank) if rank else 0 for _ in range(2))
        if choose.random() < 0.3:
            place = choose.choice(PLACES).format(a=a)
            line = choose.choice(WRITES).format(v=place, b=b)
        else:
            line = f"v{len(lines)} = " + choose.choice(VALUES).format(a=a, b=b, d=d, e=e)
        trial = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in scope.items()}
        try:
            exec(line, trial)  # on copies: a write that fails half-way leaves nothing
            exec(line, scope)
        except (RuntimeError, IndexError, ValueError):
            continue
        lines.append(line)
        if line.startswith(f"v{len(lines) - 1} = "):
            names.append(line.split(" = ")[0])
    return lines, [*names[-3:], "x"]


class Weights(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.linspace(-1, 1, 36, dtype=torch.float64).view(6, 6).sin())


def module(lines, results):
    body = "\n    ".join([*lines, f"return ({', '.join(results)},)"])
    scope = {"torch": torch, "F": F}
    exec(f"def forward(self, x, y):\n    {body}", scope)
    return type("Program", (Weights,), {"forward": scope["forward"]})()


def run(call, arguments):
    try:
        return call(*arguments)
    except (RuntimeError, IndexError, ValueError) as error:
        return error


@pytest.mark.parametrize("seed", range(16))
def test_a_random_program_equals_eager(seed):
    lines, results = program(seed)
    net = module(lines, results)
    fast = staticrt.compile(net)
    text = "\n".join([*lines, str(results)])
    spaced = seed % 3 == 0
    for rows, columns in SHAPES:
        for call in range(3):
            mine, theirs = inputs(rows, columns, call, spaced), inputs(rows, columns, call, spaced)
            with torch.no_grad():
                expected, got = run(net, theirs), run(fast, mine)
            if isinstance(expected, Exception):
                break  # what eager refuses for this shape
            assert not isinstance(got, Exception), f"{text}\n{got}"
            place = f"{text}\n{rows}x{columns}, call {call}\n"
            for want, have in zip((*expected, *theirs), (*got, *mine), strict=True):
                torch.testing.assert_close(have, want, msg=place.__add__)
