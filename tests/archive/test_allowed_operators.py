"""Which operators an archive may call: those of torch that compute tensors, others by the caller's consent."""

import io

import pytest
import torch

import staticrt
from staticrt.archive import operators
from staticrt.archive.checked_export import load_exported
from staticrt.errors import ArchiveError, InputError
from staticrt.native import _C
from staticrt.tools.cli.main import main
from tests.support.archive_body import BOOL, INT, STRING, Fields, add_constant, read_body, with_fields

pytestmark = pytest.mark.usefixtures("no_gradients")

FIX = r"fix: .*allow_operators=\[\"{}\"\].*LoadOptions::allow_operators.*--allow-operator NAME"


@pytest.fixture
def library():
    """The operators allowed_test::twice and ::thrice."""
    with torch.library._scoped_library("allowed_test", "DEF") as library:
        for name, factor in (("twice", 2), ("thrice", 3)):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, lambda x, factor=factor: x * factor, "CompositeExplicitAutograd")
            torch.library.register_fake(f"allowed_test::{name}", torch.empty_like, lib=library)
        yield torch.ops.allowed_test


def saved(function, *args):
    file = io.BytesIO()
    staticrt.save(staticrt.compile(function), file, args, exported_program=False)
    return file.getvalue()


def test_every_refused_operator_is_named_with_how_to_allow_it(library):
    data = saved(lambda x: library.twice(x) + library.thrice(x), torch.ones(3))
    with pytest.raises(
        ArchiveError, match=FIX.format('allowed_test::thrice", "allowed_test::twice')
    ) as error:
        staticrt.load(data)
    assert "'allowed_test::twice', an operator of the library 'allowed_test', not of torch" in str(
        error.value
    )
    with pytest.raises(ArchiveError, match=FIX.format("allowed_test::twice")):
        staticrt.load(data, allow_operators=["allowed_test::thrice"])


@pytest.mark.parametrize("consent", ["allowed_test::twice", "allowed_test::*"])
def test_consent_is_for_an_operator_or_a_library(library, consent):
    data = saved(lambda x: library.twice(x) + 1, torch.ones(3))
    assert staticrt.load(data, allow_operators=[consent])(torch.ones(2)).tolist() == [3.0, 3.0]
    for other in ("allowed_test::twic", "allowed_test", "*", "aten::*", ""):
        with pytest.raises(ArchiveError, match="calls 'allowed_test::twice'"):
            staticrt.load(data, allow_operators=[other])


def test_operators_in_branches_are_judged(library):
    def branch(x):
        return torch.cond(x.sum() > 0, lambda y: library.twice(y), lambda y: y - 1, (x,))

    with pytest.raises(ArchiveError, match="calls 'allowed_test::twice'"):
        staticrt.load(saved(branch, torch.ones(3)))


def test_the_command_line_takes_consent(library, tmp_path, capsys):
    class Twice(torch.nn.Module):
        def forward(self, x):
            return library.twice(x)

    own, exported = tmp_path / "own.pt2", tmp_path / "exported.pt2"
    own.write_bytes(saved(Twice(), torch.ones(3)))
    torch.export.save(torch.export.export(Twice(), (torch.ones(3),)), exported)
    for path in (own, exported):
        assert main(["run", str(path), "--shape", "3"]) != 0
        assert "--allow-operator" in capsys.readouterr().err
        assert main(["run", str(path), "--shape", "3", "--allow-operator", "allowed_test::twice"]) == 0
    with pytest.raises(InputError, match="an operator of the library 'allowed_test'"):
        load_exported(exported)


def test_a_file_is_not_touched(tmp_path):
    """`aten::from_file` creates and maps a file: an archive that calls it is refused, and nothing is created."""
    path = tmp_path / "mapped"
    body = read_body(data := saved(lambda x: x.relu() + 1, torch.ones(4)))
    program = body.traces[0].program
    schema = str(torch.ops.aten.from_file.default._schema).encode()
    program.ops[program.nodes[0].op] = Fields(name=b"aten::from_file", schema=schema)
    values = [(STRING, str(path).encode()), (BOOL, 1), (INT, 4), *[(0, None)] * 4]
    program.nodes[0].args = []
    numbers = [add_constant(program, value) for value in values]
    program.nodes[0].args = [Fields(is_list=0, values=[number]) for number in numbers]
    data = with_fields(data, body)
    with pytest.raises(ArchiveError, match=r"calls 'aten::from_file', which takes the text 'filename'"):
        staticrt.load(data)
    assert not path.exists()
    loaded = staticrt.load(data, allow_operators=["aten::from_file"])
    assert loaded(torch.ones(4)).tolist() == [1.0] * 4
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("aten::from_file", "takes the text 'filename'"),
        ("aten::set_.source_Storage", "takes a Storage"),
        ("aten::record_stream", "takes a Stream"),
        ("aten::_nested_view_from_buffer", "do not check their arguments"),
        ("aten::_sparse_coo_tensor_unsafe", "do not check their arguments"),
        ("aten::mkldnn_rnn_layer", "do not check their arguments"),
        ("aten::fbgemm_pack_gemm_matrix_fp16", "do not check their arguments"),
        ("quantized::linear", "library 'quantized'"),
        ("_c10d_functional::all_reduce", "library '_c10d_functional'"),
        ("aten::no_such_operator", "does not have"),
        ("aten::add.Tensor", ""),
        ("aten::gelu", ""),
        ("aten::add_.Tensor", ""),
        ("aten::_softmax", ""),
        ("aten::div.Tensor_mode", ""),
        ("aten::conv2d.padding", ""),
        ("staticrt::sgd_", ""),
    ],
)
def test_the_rule(name, reason):
    found = _C.operator_refusal(name, [])
    assert reason in found if reason else found == ""


def test_both_kinds_of_files_have_one_rule():
    """The check of torch.export files asks the rule of our archives, for every operator of torch."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(("aten::", "prims::"))]
    assert len(names) > 2000
    for name in names:
        base, _, overload = name.partition(".")
        target = f"torch.ops.{base.replace('::', '.')}.{overload or 'default'}"
        found = operators.refusal(target)
        assert found in (_C.operator_refusal(name, []), "which this torch does not have")


@pytest.mark.parametrize(
    ("function", "number"),
    [
        (lambda x: torch.ops.aten.view_copy.dtype(x, torch.int32) + 1, 3),
        (lambda x: x.to(torch.float64).exp(), 7),
        (lambda x: x.sum(0, dtype=torch.float64) * 2, 7),
        (lambda x: torch.full((x.shape[0],), 2, dtype=torch.int64) + 1, 4),
    ],
)
def test_results_have_the_dtype_that_an_operator_is_asked_for(function, number):
    """Kernels trust the dtypes that the file declares, and eager the argument."""
    data = saved(function, torch.ones(3))
    torch.testing.assert_close(staticrt.load(data)(torch.ones(4)), function(torch.ones(4)))
    body = read_body(data)
    (dtype,) = (c for c in body.traces[0].program.constants if c.value == (INT, number))
    dtype.value = INT, 1
    with pytest.raises(ArchiveError, match=r"archive declares that .* is .*, but asks .* for Char"):
        staticrt.load(with_fields(data, body))


@pytest.mark.parametrize(
    ("function", "declared", "text"),
    [
        (lambda x: x.exp() + 1, 7, "is Double, but .*exp.* gives Float"),
        (lambda x: x > 0, 6, "is Float, but .*gt.* gives Bool"),
        (lambda x: x.long() + 1, 7, "is Double, but .*add.* gives Long"),
        (lambda x: torch.cat([x, x]), 5, "is Half, but .*cat.* gives Float"),
    ],
    ids=["exp", "gt", "add", "cat"],
)
def test_results_have_the_dtype_that_their_operator_gives(function, declared, text):
    """Our kernels write results of the declared dtype."""
    data = saved(function, torch.ones(3))
    torch.testing.assert_close(staticrt.load(data)(torch.ones(4)), function(torch.ones(4)))
    body = read_body(data)
    body.traces[0].program.nodes[-1 if declared == 7 and "add" in text else 0].outputs[0].dtype = declared
    forged = staticrt.load(with_fields(data, body))
    for _ in range(2):
        with pytest.raises(InputError, match=f"archive declares that .* {text}"):
            forged(torch.ones(4))


def _attention(x):
    q = x.view(1, 2, 2, 4)
    return torch.nn.functional.scaled_dot_product_attention(q, q * 2, q)


@pytest.mark.parametrize(
    ("function", "dtype", "text"),
    [
        (lambda x: x & 1, torch.int32, "archive declares that .*__and__.* gives Int"),
        (lambda x: torch.bitwise_or(x, 1), torch.int32, "archive declares that .*or.* gives Int"),
        (_attention, torch.float32, "(?s)scalar type Float but .*scaled_dot_product_attention"),
        (
            lambda x: torch.nn.functional.rms_norm(x, (4,)),
            torch.float32,
            "archive declares that .*rms_norm.* gives Float",
        ),
        (lambda x: torch.nn.functional.layer_norm(x, (4,)), torch.float32, "layer_norm"),
        (lambda x: torch.nn.functional.group_norm(x, 2), torch.float32, "group_norm"),
        (lambda x: x.softmax(-1), torch.float32, "softmax"),
        (lambda x: x @ x, torch.float32, "matmul"),
    ],
    ids=["and", "or", "attention", "rms_norm", "layer_norm", "group_norm", "softmax", "matmul"],
)
@pytest.mark.parametrize("declared", [5, 7])
def test_the_last_result_has_the_dtype_that_its_operator_gives(function, dtype, text, declared):
    """No later operator notices what it reads; some of torch's own kernels refuse in their words."""
    x = (torch.arange(16).view(4, 4) % 5).to(dtype)
    data = saved(function, x)
    torch.testing.assert_close(staticrt.load(data)(x), function(x))
    body = read_body(data)
    body.traces[0].program.nodes[-1].outputs[0].dtype = declared
    forged = staticrt.load(with_fields(data, body))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=text):
            forged(x)


@pytest.mark.parametrize("function", [lambda x: x / 2, lambda x: x + 1j], ids=["real", "complex"])
def test_a_result_of_integers_has_the_default_dtype_of_its_archive(function):
    data = saved(function, torch.ones(3, dtype=torch.int64))
    want = function(torch.ones(4, dtype=torch.int64))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = staticrt.load(data)(torch.ones(4, dtype=torch.int64))
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(found, want)


@pytest.mark.filterwarnings("error")
def test_operators_are_asked_for_their_dtypes_without_warnings():
    x = torch.arange(12.0).view(3, 4)
    torch.testing.assert_close(staticrt.load(saved(lambda x: x.std(1), x))(x), x.std(1))
