"""Kernels that a library registers with the dispatcher between calls, and takes back again."""

import contextlib
import gc
import io
import itertools
import weakref

import pytest
import torch

import staticrt
from staticrt.errors import InputError
from staticrt.frontend.guards.operators import kernels_of
from tests.support.compilers import each_compiler, each_compiler_for_gradients, splits

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

_numbers = itertools.count()


def add(number):
    return lambda x: x.detach() + number


@pytest.fixture
def library():
    """A library with an operator of its own, `triple`, and what registers another kernel of it."""
    name = f"kernels_test{next(_numbers)}"
    with torch.library._scoped_library(name, "FRAGMENT") as defines:
        defines.define("triple(Tensor x) -> Tensor")
        yield name


@pytest.fixture
def scoped():
    """Registers a kernel of an operator, and takes the one before back."""
    libraries = []

    def register(name, operator, kernel, key):
        for library in libraries:
            library._destroy()
        libraries[:] = [torch.library.Library(name, "IMPL")]
        libraries[0].impl(operator, kernel, key)
        if name != "aten" and key == "CPU":
            libraries[0].impl(operator, torch.empty_like, "Meta")

    yield register
    for library in libraries:
        library._destroy()


KEYS = ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"]


@pytest.mark.parametrize("key", KEYS)
@each_compiler
def test_another_kernel_of_an_operator_runs(library, scoped, key, compiler):
    def model(x):
        return getattr(torch.ops, library).triple(x * 2).relu()

    compiled = compiler(model)
    for number in (1.0, 5.0, 7.0):
        scoped(library, "triple", add(number), key)
        for _ in range(3):
            with torch.no_grad():
                assert compiled(torch.ones(3)).tolist() == [2 + number] * 3


@each_compiler_for_gradients
def test_another_kernel_runs_with_gradients(library, scoped, compiler):
    def model(x):
        return (getattr(torch.ops, library).triple(x) * x).relu()

    compiled = compiler(model)
    for number in (1.0, 5.0, 7.0):
        scoped(library, "triple", lambda x, number=number: x * number, "CompositeImplicitAutograd")
        for _ in range(3):
            x = torch.ones(3, requires_grad=True)
            result = compiled(x)
            result.sum().backward()
            assert (result.tolist(), x.grad.tolist()) == ([number] * 3, [2 * number] * 3)


def test_another_kernel_runs_in_steps(library, scoped):
    layer = torch.nn.Linear(2, 1, bias=False)

    def step(x):
        loss = getattr(torch.ops, library).triple(layer(x)).sum()
        loss.backward()
        grad, layer.weight.grad = layer.weight.grad, None
        return loss, grad

    compiled = staticrt.compile_step(step)
    x = torch.ones(1, 2)
    for number in (1.0, 5.0, 7.0):
        scoped(library, "triple", lambda x, number=number: x * number, "CompositeImplicitAutograd")
        for _ in range(3):
            torch.testing.assert_close(compiled(x), step(x))


@pytest.fixture
def custom():
    """An operator of `torch.library.custom_op` that multiplies by a number."""
    name = f"kernels_test{next(_numbers)}::times"

    def times(x: torch.Tensor, number: float) -> torch.Tensor:
        return x * number

    operator = torch.library.custom_op(name, times, mutates_args=())
    operator.register_fake(lambda x, number: torch.empty_like(x))
    return operator


@each_compiler_for_gradients
def test_another_formula_of_a_gradient_runs(custom, compiler):
    """`custom_op` keeps its functions in Python: the dispatcher's kernels stay the same."""

    def model(x):
        return (custom(x, 3.0) * x).relu()

    compiled = compiler(model)
    for number in (3.0, 5.0, 7.0):
        custom.register_autograd(lambda ctx, grad, number=number: (grad * number, None))
        for _ in range(3):
            x = torch.ones(3, requires_grad=True)
            compiled(x).sum().backward()
            assert x.grad.tolist() == [3 + number] * 3


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel:UserWarning")
def test_a_region_runs_eagerly_only_while_a_library_serves_its_operators(scoped):
    compiled = splits(lambda x: (x * 2).relu())

    def runs_eagerly():
        return "a library replaced the kernel" in str(compiled.explain())

    def check_gradients():
        for _ in range(2):
            x = torch.ones(3, requires_grad=True)
            compiled(x).sum().backward()
            assert x.grad.tolist() == [2.0] * 3
            assert not runs_eagerly()

    check_gradients()
    scoped("aten", "relu", add(10.0), "AutogradCPU")  # its result has no history
    assert not compiled(torch.ones(3, requires_grad=True)).requires_grad
    assert runs_eagerly()
    scoped("aten", "cosh", torch.sinh, "CPU")
    check_gradients()


# -- operators of torch ---------------------------------------------------------------------------------------------

OVERRIDES = {
    "an element-wise operator": ("relu", add(10.0), "CPU"),
    "above autograd": ("relu", add(10.0), "AutogradCPU"),
    "a matrix product": ("mm", lambda a, b: torch.full((a.shape[0], b.shape[1]), 3.0), "CPU"),
    "a composite operator": (
        "linear",
        lambda x, weight, bias=None: torch.full((2, 2), -7.0),
        "CompositeImplicitAutograd",
    ),
    "a composite operator that is taken apart": (
        "reshape",
        lambda x, shape: torch.full((4,), 2.5),
        "CompositeImplicitAutograd",
    ),
}


def of_torch(x, weight):
    return torch.nn.functional.linear(x, weight).relu().reshape(-1) + torch.mm(x, weight).reshape(-1)


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel:UserWarning")
@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@each_compiler
@pytest.mark.parametrize("override", OVERRIDES.values(), ids=OVERRIDES)
@pytest.mark.parametrize("first", ["before", "after"])
def test_kernels_that_replace_those_of_torch_run(scoped, override, compiler, gradients, first):
    """Whether the library comes before the first call or after it; and torch's run again when it has ended."""
    operator, kernel, key = override
    weight = torch.nn.Parameter(torch.eye(2), requires_grad=gradients)
    compiled = compiler(of_torch)

    def check():
        for _ in range(2):
            x = torch.tensor([[1.0, -2.0], [3.0, -4.0]])
            got, expected = compiled(x, weight), of_torch(x, weight)
            assert got.tolist() == expected.tolist()
            assert got.requires_grad == expected.requires_grad

    if first == "after":
        check()
    scoped("aten", operator, kernel, key)
    check()
    scoped("aten", "cosh", torch.sinh, "CPU")
    check()


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel:UserWarning")
def test_explain_says_which_operator_a_library_serves(scoped):
    scoped("aten", "relu", add(10.0), "CPU")
    compiled = staticrt.compile(torch.nn.ReLU())
    assert compiled(torch.zeros(1)).item() == 10.0
    assert "a library replaces the kernel of aten::relu" in str(compiled.explain())


def test_explain_says_which_operator_a_library_defines_in_torchs_namespace():
    name = f"defined{next(_numbers)}"
    with torch.library._scoped_library("aten", "FRAGMENT") as library:
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, add(10.0), "CompositeExplicitAutograd")
        compiled = staticrt.compile(lambda x: getattr(torch.ops.aten, name)(x).relu())
        for _ in range(2):
            assert compiled(torch.zeros(1)).item() == 10.0
    assert f"a library defines aten::{name}" in str(compiled.explain())


def test_kernels_of_torch_itself_are_no_replacement():
    """What torch registers in Python, its own compilers included."""
    import torch._inductor

    names = [str(name) for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    assert len(kernels_of(names, [])) > 2000


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel:UserWarning")
@pytest.mark.parametrize("of_torch", [False, True], ids=["of the library", "of torch"])
def test_a_kernel_for_autocast_runs_where_the_model_turns_it_on(library, scoped, of_torch):
    def model(x):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.mm(x, x) + 1 if of_torch else getattr(torch.ops, library).triple(x) + 1

    with (
        torch.no_grad(),
        torch.library._scoped_library(library, "IMPL") as kernels,
        torch.library._scoped_library(library, "IMPL") as scope,
    ):
        kernels.impl("triple", add(3.0), "CPU")
        scope.impl("triple", torch.empty_like, "Meta")
        compiled = staticrt.compile(model)
        for _ in range(3):
            assert compiled(torch.ones(2, 2)).tolist() == model(torch.ones(2, 2)).tolist()
        name, operator = ("aten", "mm") if of_torch else (library, "triple")
        scoped(name, operator, lambda x, *_: x.detach() * 0 + 41, "AutocastCPU")
        for _ in range(3):
            assert compiled(torch.ones(2, 2)).tolist() == model(torch.ones(2, 2)).tolist() == [[42.0] * 2] * 2


# -- libraries that end ---------------------------------------------------------------------------------------------


def ended(name):
    library = torch.library.Library(name, "FRAGMENT")
    library.define("triple(Tensor x) -> Tensor")
    library.impl("triple", lambda x: x * 3, "CPU")
    library.impl("triple", torch.empty_like, "Meta")
    return library


def model_of(name):
    def model(x):
        return getattr(torch.ops, name).triple(x).relu()

    return model


@pytest.mark.parametrize("key", ["CPU", "CompositeImplicitAutograd"])
def test_kernels_that_lead_to_the_model_are_freed_with_it(key):
    """Once another kernel has replaced one, nobody but a guard could hold it."""
    name = f"kernels_test{next(_numbers)}"

    def used():
        layer = torch.nn.Linear(2, 2)
        compiled = staticrt.compile(lambda x: getattr(torch.ops, name).triple(layer(x)).relu())
        for kernel in (lambda x, _compiled=compiled: x * 3, lambda x: x):
            with torch.library._scoped_library(name, "FRAGMENT") as library, torch.no_grad():
                library.define("triple(Tensor x) -> Tensor")
                library.impl("triple", kernel, key)
                if key == "CPU":
                    library.impl("triple", torch.empty_like, "Meta")
                if "_compiled" in kernel.__code__.co_varnames:
                    compiled(torch.ones(2, 2))
        assert len(compiled.explain().traces) == 1
        return weakref.ref(layer)

    layers = [used() for _ in range(3)]
    gc.collect()
    assert [layer() for layer in layers] == [None] * 3


@pytest.mark.parametrize("again", [False, True], ids=["gone", "defined again"])
def test_archives_whose_library_has_ended_say_so(again):
    """Defined again, the operator may lie where it was: then it runs."""
    name = f"kernels_test{next(_numbers)}"
    library = ended(name)
    file = io.BytesIO()
    with torch.no_grad():
        staticrt.save(staticrt.compile(model_of(name)), file, (torch.ones(2),), exported_program=False)
    loaded = staticrt.load(file.getvalue(), allow_operators=[f"{name}::triple"])
    for _ in range(2):
        assert loaded(torch.ones(2)).tolist() == [3.0, 3.0]
    library._destroy()
    library = ended(name) if again else library
    for size in (2, 2, 5):
        with contextlib.suppress(InputError) if again else pytest.raises(InputError, match="triple is gone"):
            assert loaded(torch.ones(size)).tolist() == [3.0] * size
    library._destroy()


def test_a_compiled_model_whose_library_has_ended_raises_as_eager_does():
    name = f"kernels_test{next(_numbers)}"
    library = ended(name)
    compiled = staticrt.compile(model_of(name))
    for _ in range(2):
        assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]
    library._destroy()
    for call in (model_of(name), compiled, compiled):
        with pytest.raises(AttributeError, match="triple"):
            call(torch.ones(2))
