"""When outputs live and die, and what restores of the pool make of it. Numbers: upstream's scenarios."""

import re

import torch

from tests.support.fake_graph_backend import FakeBackend
from tests.support.graph_harness import empty, storage


def two(args):
    (x,) = empty(args)
    return [x + 1, x + 2]


def cube_of_it(args):
    (x,) = empty(args)
    return [x * x * x]


def test_an_output_dies_before_a_restore(cold_step):
    cold = cold_step
    f = cold.boxed(two)
    inp = torch.rand(4)
    for _ in range(2):
        f([inp])
    out1, out2 = f([inp])
    given = [out1]
    del out1, out2
    assert cold.restores == 0
    x = cold.boxed(cube_of_it)(given)[0]
    assert cold.restores == 1
    assert torch.allclose(x, (inp + 1) ** 3)
    assert cold.live() == 1  # the other output was freed after the restore
    del x
    assert cold.live() == 0


def test_aliased_outputs_die(cold_step):
    cold = cold_step

    def f(args):
        (x,) = empty(args)
        y = x + 2
        return [x + 1, y, y[0]]

    f = cold.boxed(f)
    inp = torch.rand(4, 4)
    for _ in range(2):
        f([inp])
    out1, out2, out3 = f([inp])
    given = [out1]
    del out1, out2, out3
    x = cold.boxed(cube_of_it)(given)[0]
    assert cold.restores == 1
    assert cold.live() == 1
    del x
    assert cold.live() == 0


def test_two_views_of_one_storage(cold_step):
    cold = cold_step

    def f(args):
        (x,) = empty(args)
        y = x + 1
        return [y[0], y[1]]

    def g(args):
        (x,) = empty(args)
        y = x * x
        return [y[0], y[1]]

    f, g = cold.boxed(f), cold.boxed(g)
    inp = torch.rand(2, 2)
    for _ in range(2):
        f([inp])
    x1, x2 = f([inp])
    g([x1])
    assert cold.restores == 1
    assert x1.untyped_storage().data_ptr() == x2.untyped_storage().data_ptr()
    assert cold.live() == 1
    del x1
    assert cold.live() == 1
    del x2
    assert cold.live() == 0


def test_a_restore_drops_the_caches(tree):
    f = tree.wrap(lambda x: x @ x)
    g = tree.boxed(lambda args: (lambda x: [x[0], x @ x])(*empty(args)))
    for _ in range(3):
        f(torch.rand(20, 20))
    assert tree.restores == 0
    out = f(torch.rand(20, 20))
    before = id(out)
    del out
    assert id(f(torch.rand(20, 20))) == before
    for count in (1, 2):
        with tree.step():
            out = f(torch.rand(20, 20))
            alias, out2 = g([out])
        del alias
        assert tree.live() == 2
        del out
        assert tree.live() == 1
        del out2
        assert tree.live() == 0
        assert tree.restores == count
    f(torch.rand(20, 20))
    assert tree.node.cacheable == [False]  # a new object each time (whose id may be an old one's)


def test_five_outputs_of_two_storages(tree):
    def first(args):
        (x,) = empty(args)
        x = x * 20
        y = x * 10
        return [x, x[0], y, y[0]]

    def second(args):
        x, y = empty(args)
        return [x[4:], y[4:]]

    first, second = tree.boxed(first), tree.boxed(second)
    for _ in range(4):
        with tree.step():
            x, x_alias, y, y_alias = first([torch.rand(20, 20)])
            x_alias2, y_alias2 = second([x, y])
            del y
        outs = (x, x_alias, x_alias2, y_alias, y_alias2)
        assert len({o.untyped_storage().data_ptr(): storage(o) for o in outs}) == 2
        assert len({storage(o) for o in outs}) == 2  # one storage per address
        del outs, x, x_alias, x_alias2, y_alias, y_alias2
    assert tree.alive() == 0


def test_outputs_of_one_storage_are_made_anew(tree):
    f = tree.wrap(lambda x: (lambda y: (y, y[1:], x - 1))(x * 2))
    for _ in range(4):
        x = torch.rand(3)
        whole, part, other = f(x)
        assert storage(whole) == storage(part)
        assert torch.equal(part, (x * 2)[1:])
        assert torch.equal(other, x - 1)
    assert tree.node.cacheable == [False, False, True]
    assert [output is None for output in tree.node.cached_outputs] == [True, True, False]
    del whole, part, other
    assert tree.alive() == 0


def test_an_input_and_its_view_returned(tree):
    inp = torch.rand(20, 20)
    f = tree.boxed(lambda args: (lambda x: [x, x[0], x + x])(*empty(args)))
    for _ in range(3):
        out, view, _sum = f([inp])
        assert storage(out) == storage(view) == storage(inp)
        assert torch.equal(out, inp)
        assert torch.equal(view, inp[0])
        del out, view, _sum
        assert tree.alive() == 0
    assert tree.node.cached_outputs[:2] == [None, None]


def test_a_view_of_a_static_input(tree):
    inp = torch.rand(20, 20)
    f = tree.boxed(lambda args: (lambda x: [x[0]])(*empty(args)), static_inputs=(0,))
    for _ in range(3):
        (out,) = f([inp])
        assert storage(out) == storage(inp)
        assert torch.equal(out, inp[0])
    assert tree.node.cached_outputs == [None]
    assert tree.node.cacheable == [False]


def test_views_of_a_parameter(tree):
    parameter = torch.rand(20, 20)
    f = tree.boxed(lambda args: (lambda p, x: [p[0], p, p + x])(*empty(args)), static_inputs=(0,))
    inp = torch.rand(20, 20)
    for _ in range(3):
        outs = f([parameter, inp])
        assert outs[1] is parameter
        assert torch.equal(outs[2], parameter + inp)
    assert tree.alive() == 1


def test_a_transposed_weight_and_a_view_of_the_output(tree):
    weight = torch.rand(10, 10)

    def linear(args):
        w, x = empty(args)
        return [w.T @ x, w.T, w[0:4]]

    f = tree.boxed(linear, static_inputs=(0,))
    view = tree.boxed(lambda args: [empty(args)[0][2:]])
    x = torch.rand(10, 10)
    for _ in range(3):
        with tree.step():
            out, alias1, alias2 = f([weight, x])
            assert {storage(alias1), storage(alias2)} == {storage(weight)}
            (out2,) = view([out])
            assert storage(out) == storage(out2)
            assert torch.equal(out2, (weight.T @ x)[2:])
    first = tree.node.path_nodes()[0]
    assert first.cacheable[0] is False
    assert first.cached_outputs[0] is None


def test_a_kept_output_is_the_cached_object(tree):
    f = tree.wrap(lambda x: x + x)
    for _ in range(3):
        f(torch.rand(2, 2))
    node = tree.node
    assert tree.alive() == 0
    out = f(torch.rand(2, 2))
    assert out is node.cached_outputs[0]
    assert tree.alive() == 1
    view = out[0:]
    del out
    assert tree.alive() == 1
    del view
    assert tree.alive() == 0


def test_only_the_storage_object_is_kept(tree):
    f = tree.wrap(lambda x: x + x)
    for _ in range(3):
        f(torch.rand(2, 2))
    kept = f(torch.rand(2, 2)).untyped_storage()
    assert tree.alive() == 1
    del kept
    assert tree.alive() == 0


def test_a_tensor_that_only_shares_the_storage_keeps_an_output_alive(tree):
    """No view of autograd's, which would hold its base: nothing but the storage tells."""
    f = tree.wrap(lambda x: x + x)
    for _ in range(3):
        f(torch.rand(2, 2))
    alias = torch.empty(0).set_(f(torch.rand(2, 2)))
    assert alias._base is None
    assert tree.alive() == 1
    del alias
    assert tree.alive() == 0


def test_an_input_moved_out_of_the_pool(cold_step):
    cold = cold_step
    f, g = cold.boxed(two), cold.boxed(cube_of_it)
    inp = torch.rand(4)
    x1, x2 = f([inp])
    g([x1])
    del x1, x2
    x1, _x2 = f([inp])
    assert cold.restores == 0
    elsewhere = torch.zeros_like(x1)
    g([elsewhere])
    assert cold.restores == 1
    assert cold.root_children() == [2]
    assert "input 0 was captured as output of the step" in cold.node.reason


def test_constants_closed_over(tree):
    constant = torch.arange(10.0)
    f = tree.boxed(
        lambda args: (lambda x: [constant, constant[0:2], x + 2])(*empty(args)), constants=(constant,)
    )
    for _ in range(3):
        whole, part, out = f([torch.tensor([2.0])])
        assert torch.equal(whole, torch.arange(10.0))
        assert torch.equal(part, torch.arange(2.0))
        assert out.item() == 4
    assert tree.alive() == 1


def test_empty_storages(tree):
    f = tree.wrap(lambda x: (x + x + x, torch.zeros([0]), torch.zeros([100])[0:0]))
    inp = torch.rand(4)
    for _ in range(3):
        out = f(inp)
        assert tree.alive() == 2
    del out
    g = tree.wrap(lambda x: (x + x + x, torch.rand([4]) + 10))
    with tree.step():
        pass
    for _ in range(3):
        out = g(torch.rand(0))
    assert len([o for o in tree.node.outputs if o is not None and o.alive()]) == 1
    assert out[1].min() >= 10


def test_empty_outputs_are_the_callers(tree):
    f = tree.wrap(lambda x: (x + 1, torch.zeros(0, 3), x[:0].t()))
    for _ in range(4):
        _, *empty = f(torch.rand(2, 3))
        assert [x.shape for x in empty] == [(0, 3), (3, 0)]
        for x in empty:
            x.resize_(2, 2).fill_(1)


def test_an_expanded_input(tree):
    f = tree.wrap(lambda x: x + 4 + torch.ones(4, 512))
    for _ in range(3):
        x = torch.rand(1, 512).expand(4, 512)
        assert torch.equal(f(x), x + 5)
    assert tree.node.copies.nbytes == 512 * 4


def test_an_input_that_overlaps_itself(tree):
    f = tree.wrap(lambda x: x * 2)
    for _ in range(3):
        x = torch.rand(6).as_strided((3, 4), (1, 1))
        assert torch.equal(f(x), x * 2)


def test_integers_booleans_and_scatter(tree):
    def f(x, mask, values):
        y = x.clone()
        y.index_put_((mask,), values)
        return y

    wrapped = tree.wrap(f)
    for _ in range(3):
        x = torch.rand(4)
        mask = torch.tensor([0, 2])
        assert torch.equal(wrapped(x, mask, x[:1]), f(x, mask, x[:1]))


def test_a_mask_that_is_written_through(tree):
    """`index_put_` with booleans: how many elements it writes differs from call to call."""

    def f(x, mask, value):
        y = torch.zeros_like(x)
        y.index_put_((mask,), value, accumulate=True)
        y[~mask] = -1
        return y

    wrapped = tree.wrap(f)
    for number in range(5):
        x = torch.rand(4, 4)
        mask = x > number / 5
        assert torch.equal(wrapped(x, mask, x[0, 0]), f(x, mask, x[0, 0]))
    assert tree.captures == 1


def test_an_empty_output_on_another_device(tree):
    f = tree.wrap(lambda x: (x + 1, torch.empty(0, device="meta")))
    for _ in range(4):
        x = torch.rand(3)
        out, nothing = f(x)
        assert torch.equal(out, x + 1)
        assert (nothing.device.type, nothing.shape) == ("meta", (0,))
    assert tree.captures == 1


def test_an_output_on_another_device_runs_plain(make_tree):
    """The other device is played by another dtype: every memory here is the CPU's."""
    tree = make_tree(FakeBackend("rebind"))
    tree.backend.owns = lambda tensor: tensor.dtype is not torch.float64
    f = tree.wrap(lambda x: (x + 1, x.double(), torch.empty(0, dtype=torch.float64)))
    for _ in range(4):
        x = torch.rand(3)
        for got, want in zip(f(x), (x + 1, x.double(), torch.empty(0, dtype=torch.float64)), strict=True):
            assert torch.equal(got, want)
    assert tree.captures == 0
    assert "Expected all outputs in graph capture on the graph's device" in str(tree.ctx.explain())


def test_a_sparse_output_runs_plain(tree):
    def f(indices, values):
        return torch.sparse_coo_tensor(indices, values, (10, 4))

    wrapped = tree.wrap(f)
    for _ in range(3):
        out = wrapped(torch.tensor([[1, 3]]), torch.ones(2, 4))
        assert torch.equal(out.to_dense(), f(torch.tensor([[1, 3]]), torch.ones(2, 4)).to_dense())
    assert re.search("sparse|not dense", str(tree.ctx.explain()))


def test_multinomial(tree):
    f = tree.wrap(lambda p: torch.multinomial(p, 3))
    for _ in range(4):
        drawn = f(torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0]))
        assert sorted(drawn.tolist()) == [1, 3, 4]
