"""-0.0 equals 0.0, and answers otherwise: neither serves where the other was compiled."""

import torch

from tests.support.compilers import each_compiler


def function(x, zeros, pair=(1.0, 2)):
    print(end="")
    return 1 / (x * zeros["a"]), torch.full_like(x, pair[0]).sqrt().copysign(torch.tensor(zeros["a"]))


@each_compiler
def test_each_sign_is_compiled(compiler):
    compiled = compiler(function)
    x = torch.ones(2)
    for zero in (0.0, -0.0, 0.0, 0j, -0.0, complex(0.0, -0.0)):
        given = (x, {"a": zero.real}, (zero, 2))
        assert repr(compiled(*given)) == repr(function(*given))


def test_graphs_of_other_backends_stay_as_they_are():
    calls = []

    def backend(gm, _inputs):
        calls.append(gm)
        return gm.forward

    compiled = torch.compile(lambda x, zero: x * zero, backend=backend)
    for zero in (0.0, -0.0):
        compiled(torch.ones(2), zero)
    assert len(calls) == 1
