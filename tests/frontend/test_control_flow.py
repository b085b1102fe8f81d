"""Control flow: one trace, equal to plain Python."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.associative_scan import associative_scan

import staticrt

WEIGHT = torch.randn(4)
LINEAR = nn.Linear(4, 4).requires_grad_(False)


def cond_uses_outer_tensors(x):
    return torch.cond(x.sum() > 0, lambda x: LINEAR(x) + WEIGHT, lambda x: x.sin() * x.shape[0], (x,))


def plain_cond(x):
    return LINEAR(x) + WEIGHT if x.sum() > 0 else x.sin() * x.shape[0]


def nested_cond(x):
    def inner(x):
        return torch.cond(x.max() > 1, lambda x: x * 2, lambda x: x - WEIGHT, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.clone(), (x,))


def plain_nested(x):
    if x.sum() > 0:
        return x * 2 if x.max() > 1 else x - WEIGHT
    return x.clone()


def loop_with_tensor_counter(x):
    return while_loop(
        lambda i, x: i < 3, lambda i, x: (i + 1, x * 2 + WEIGHT), (torch.zeros((), dtype=torch.long), x)
    )


def plain_loop(x):
    for _ in range(3):
        x = x * 2 + WEIGHT
    return torch.tensor(3), x


def loop_with_int_counter(x):
    return while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x + i), (0, x))


def plain_int_loop(x):
    for i in range(x.shape[0]):
        x = x + i
    return x.shape[0], x


def scan_rows(x):
    def combine(carry, row):
        new = carry * 0.5 + LINEAR(row)
        return new, new + 1

    return scan(combine, torch.zeros(4), x)


def plain_scan(x):
    carry, rows = torch.zeros(4), []
    for row in x:
        carry = carry * 0.5 + LINEAR(row)
        rows.append(carry + 1)
    return carry, torch.stack(rows)


def map_rows(x):
    return torch_map(lambda row: LINEAR(row).relu() * 2, x)


def plain_map(x):
    return torch.stack([LINEAR(row).relu() * 2 for row in x])


def products(x):
    return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")


CASES = [
    (cond_uses_outer_tensors, plain_cond),
    (nested_cond, plain_nested),
    (loop_with_tensor_counter, plain_loop),
    (loop_with_int_counter, plain_int_loop),
    (scan_rows, plain_scan),
    (map_rows, plain_map),
    (products, lambda x: x.cumprod(0)),
]


@pytest.mark.parametrize(("function", "plain"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_control_flow_equals_plain_python(function, plain):
    torch.manual_seed(0)
    compiled = staticrt.compile(function)
    for rows in (3, 5, 3, 2):
        for scale in (1, -1, 5):
            x = torch.rand(rows, 4) * scale
            torch.testing.assert_close(compiled(x), plain(x))
    report = compiled.explain()
    assert len(report.traces) == 1, report
    assert not report.eager, report


def test_products_of_one_row():
    compiled = staticrt.compile(products)
    for rows in (3, 1, 2):
        x = torch.rand(rows, 4)
        torch.testing.assert_close(compiled(x), x.cumprod(0))
    assert compiled(x[:1]).data_ptr() == x.data_ptr()
