"""The layers of ARCHITECTURE.md: which folder may import which, no circles, and the sizes that keep the tree readable."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import source_tree

ROOT = Path(__file__).resolve().parents[1]

# Lowest layer first: a file imports files of lower layers and of its own folder. Folders that share a layer do not import
# each other. The longest prefix of a module's name decides which folder it belongs to.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("staticrt.errors", "staticrt.locks", "staticrt.tuning", "staticrt._build_info", "staticrt._C"),
    ("staticrt.native", "staticrt.options", "staticrt.torch_private"),
    ("staticrt.shapes",),
    ("staticrt.ops", "staticrt.memory"),
    ("staticrt.frontend",),
    ("staticrt.passes",),
    ("staticrt.lowering",),
    ("staticrt.runtime",),
    ("staticrt.graphs",),
    ("staticrt.training",),
    ("staticrt.executor",),
    # Reports read executors and traces. They lie below archives and the API because compiled callables and loaded models
    # inherit their methods (`profile`, `compare`, `draw`, …) from the mixin in tools/report/inspection.py.
    ("staticrt.tools.report",),
    ("staticrt.archive",),
    ("staticrt.interop.tensorrt", "staticrt.interop.distributed"),
    ("staticrt.api",),
    ("staticrt.interop.onnx",),  # an ONNX model is compiled through the API
    ("staticrt.tools.cli",),
    ("staticrt.models",),  # the benchmark of a user's model reads files and arguments as the commands do
    ("staticrt.tools.cli.main",),  # starts every command, the benchmark among them
)
# The facade: names of all layers, imported at first use. Nothing imports it, except what uses the package as users do.
FACADE = ("staticrt", "staticrt.__main__")
FACADE_USERS = ("staticrt.tools.cli.", "staticrt.models.bench.")
OUTER_FOLDERS = ("staticrt.interop", "staticrt.tools")  # hold folders of layers and nothing else

# Functions that implement an operator take its arguments, in the order of its schema.
SCHEMA_SIGNATURES: set[str] = {
    "staticrt.frontend.tracing.composites:_batch_norm",
    "staticrt.frontend.tracing.fast_paths:attention",
    "staticrt.frontend.tracing.fast_paths:encoder_layer",
    "staticrt.interop.onnx.boxes:roi_align",
    "staticrt.interop.onnx.operators.microsoft:embed_layer_norm",
    "staticrt.interop.onnx.operators.microsoft_llm:group_query_attention",
    "staticrt.interop.onnx.operators.microsoft_quant:qgemm",
    "staticrt.interop.onnx.operators.quantize:qlinear_conv",
    "staticrt.shapes.rules.convolutions:_conv",
    "staticrt.shapes.rules.convolutions:_conv_named",
    "staticrt.shapes.rules.convolutions:_conv_transposed",
    "staticrt.shapes.rules.layers:_attention",
    "staticrt.shapes.rules.layers:_instance_norm",
    "staticrt.shapes.rules.layers:_rnn",
    "staticrt.shapes.rules.lookups:_embedding_bag",
    "staticrt.shapes.rules.quantized:_embedding_bag",
    "staticrt.training.decomposed.decompositions:run",
}

# What broke a rule when it was introduced. An entry that breaks none any more fails the test: lists only shrink.
UPWARD_IMPORTS: set[tuple[str, str]] = set()
ON_CIRCLES: set[str] = set()
PRIVATE_READS: set[str] = set()

MAX_ROOT_FILES = 8
MAX_FILES = 40
MAX_PARAMETERS = 8


@pytest.fixture(scope="module")
def files():
    return source_tree.read(ROOT)


def rank(module):
    """(layer, folder) of a module; None if no layer names it."""
    folders = [(layer, folder) for layer, folders in enumerate(LAYERS) for folder in folders]
    found = [
        (len(folder), layer, folder)
        for layer, folder in folders
        if module == folder or module.startswith(folder + ".")
    ]
    return max(found)[1:] if found else None


def upward_imports(files):
    """(importer, imported) for each import that the layers forbid."""
    found = set()
    for file in files.values():
        if file.module in (*FACADE, *OUTER_FOLDERS):
            continue
        for other in source_tree.imports(file, files):
            if other in FACADE:
                forbidden = not file.module.startswith(FACADE_USERS)
            else:
                (layer, folder), (other_layer, other_folder) = rank(file.module), rank(other)
                forbidden = other_layer > layer or (other_layer == layer and other_folder != folder)
            if forbidden:
                found.add((file.module, other))
    return found


def import_graph(files):
    return {
        name: source_tree.imports(file, files) - set(FACADE)
        for name, file in files.items()
        if name not in FACADE
    }


def tracked(*folders):
    done = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in done.stdout.splitlines() if (ROOT / path).exists()]


# -- the whole tree ------------------------------------------------------------------------------------------------


def test_every_tracked_file_is_read_and_has_a_layer(files):
    expected = {path for path in tracked("staticrt", "passes", "ops", "models") if path.endswith(".py")}
    assert len(expected) > 300
    assert expected <= {file.path for file in files.values()}
    unnamed = [m for m in files if rank(m) is None and m not in (*FACADE, *OUTER_FOLDERS)]
    assert not unnamed, f"no layer names the folder of {unnamed}"


IMPORTS_ALONE = """
import os, sys
import torch
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            __import__(name)
        except BaseException as error:
            print(f"{name}: {error!r}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_each_package_may_be_imported_first(files):
    packages = sorted({name.rpartition(".")[0] for name in files if "." in name})
    command = [sys.executable, "-c", IMPORTS_ALONE, *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_imports_go_down(files):
    found = upward_imports(files)
    assert not found - UPWARD_IMPORTS, "imports that go up"
    assert not UPWARD_IMPORTS - found, "these are gone: take them off the list"


def test_no_circles_among_files(files):
    circles = source_tree.circles(import_graph(files))
    found = {module for circle in circles for module in circle}
    assert not found - ON_CIRCLES, f"files that import each other: {circles}"
    assert not ON_CIRCLES - found, "these are gone: take them off the list"


def test_few_parameters(files):
    found = {name for file in files.values() for name in source_tree.long_signatures(file, MAX_PARAMETERS)}
    assert not found - SCHEMA_SIGNATURES, f"more than {MAX_PARAMETERS} positional parameters"
    assert not SCHEMA_SIGNATURES - found, "these are gone: take them off the list"


def test_the_executor_is_read_through_its_public_members(files):
    inside = [file for name, file in files.items() if name.startswith("staticrt.executor")]
    names = source_tree.private_members(inside)
    assert names
    outside = [file for name, file in files.items() if not name.startswith("staticrt.executor")]
    found = {read for file in outside for read in source_tree.private_reads(file, names)}
    # The executor of a compiled callable is the API's own; others reach it through public methods.
    users = [file for file in outside if not file.module.startswith("staticrt.api.")]
    found |= {read for file in users for read in source_tree.private_reads(file, {"_executor"})}
    assert not found - PRIVATE_READS, "private members of the executor"
    assert not PRIVATE_READS - found, "these are gone: take them off the list"


def test_the_root_holds_few_files():
    found = sorted(path.name for path in (ROOT / "staticrt").glob("*.py"))
    assert len(found) <= MAX_ROOT_FILES, found


def test_folders_hold_few_files():
    code = (".py", ".pyi", ".h", ".cpp", ".cu", ".inc")
    counts = {}
    for path in tracked():
        if path.endswith(code):
            folder = path.rpartition("/")[0]
            counts[folder] = counts.get(folder, 0) + 1
    assert {folder: count for folder, count in counts.items() if count > MAX_FILES} == {}


def test_package_docstrings_are_those_of_the_map(files):
    table = dict(
        re.findall(r"^\| `([\w/]+)/` \| (.*) \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    )
    folders = [name.split(".")[1] for layer in LAYERS for name in layer if name in files]
    missing = [
        r
        for r in folders
        if r not in table and f"staticrt/{r}" not in table and (ROOT / "staticrt" / r).is_dir()
    ]
    assert not missing, f"ARCHITECTURE.md's table has no row for {missing}"
    checked = 0
    for folder, sentence in table.items():
        init = ROOT / folder / "__init__.py"
        if init.exists():
            checked += 1
            text = files[source_tree.module_name(f"{folder}/__init__.py")].tree.body[0].value.value
            assert " ".join(text.split()).startswith(sentence), f"{init} and ARCHITECTURE.md differ"
    assert checked >= 14


def test_packages_say_what_they_hold(files):
    for file in files.values():
        if file.path.endswith("__init__.py"):
            first = file.tree.body[0].value.value if file.tree.body else ""
            assert len(first.split()) > 3, f"{file.path} has no docstring"


# -- each check finds what it looks for ------------------------------------------------------------------------------


def texts(**bodies):
    names = {"low": "ops/low.py", "same": "staticrt/memory/same.py", "high": "staticrt/api/high.py"}
    paths = {"facade": "staticrt/__init__.py", "rules": "staticrt/shapes/rules/__init__.py", **names}
    paths |= {"one": "staticrt/shapes/rules/one.py", "run": "staticrt/executor/run.py"}
    return source_tree.from_texts({path: bodies.get(name, "") for name, path in paths.items()})


@pytest.mark.parametrize(
    "text",
    [
        "import staticrt.api.high\n",
        "from staticrt.api import high\n",
        "from staticrt.api.high import something\n",
        "def f():\n    from staticrt.api.high import g\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from staticrt.api.high import G\n",
        "import importlib\nhigh = importlib.import_module('staticrt.api.high')\n",
        "TABLE = {'name': 'staticrt.api.high:make'}\n",
        "TABLE = {'name': ('staticrt.api.high', 'help')}\n",
        "import importlib\ndef f(name):\n    importlib.import_module(f'staticrt.api.{name}')\n",
    ],
)
def test_an_upward_import_is_found(text):
    assert upward_imports(texts(low=text)) == {("staticrt.ops.low", "staticrt.api.high")}
    assert upward_imports(texts(high=text)) == set()


@pytest.mark.parametrize(
    "text",
    [
        "import staticrt\n",
        "from staticrt import compile\n",
        "import importlib\nimportlib.import_module('staticrt')\n",
    ],
)
def test_an_import_of_the_facade_is_found(text):
    assert upward_imports(texts(low=text)) == {("staticrt.ops.low", "staticrt")}


def test_folders_of_one_layer_do_not_import_each_other():
    found = upward_imports(texts(low="from staticrt.memory import same\n"))
    assert found == {("staticrt.ops.low", "staticrt.memory.same")}


def test_words_that_name_a_module_in_texts_are_no_imports():
    text = '"""See `staticrt.api.high`."""\n\ndef f():\n    """staticrt.api.high"""\n    raise ValueError("a staticrt.api.high")\n'
    assert upward_imports(texts(low=text)) == set()


def test_relative_imports_are_refused():
    with pytest.raises(AssertionError, match="relative import"):
        upward_imports(texts(low="from . import x\n"))
    with pytest.raises(AssertionError, match=r"import staticrt\.passes\.base"):
        upward_imports(texts(low="from passes.base import x\n"))


def test_circles_are_found():
    assert source_tree.circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [("a", "b", "c")]
    assert source_tree.circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    by_name = "import importlib\nfor name in ():\n    importlib.import_module(f'{__name__}.{name}')\n"
    files = texts(rules=by_name, one="from staticrt.shapes import rules\n")
    assert source_tree.circles(import_graph(files)) == [
        ("staticrt.shapes.rules", "staticrt.shapes.rules.one")
    ]


def test_long_signatures_are_found():
    files = texts(
        low="def f(a, b, c, /, d): ...\nclass C:\n    def m(self, a, b, c, *, d): ...\ng = lambda a, b, c, d: 0\n"
    )
    assert source_tree.long_signatures(files["staticrt.ops.low"], 3) == {
        "staticrt.ops.low:f",
        "staticrt.ops.low:lambda",
    }


def test_private_reads_are_found():
    run = "class Run:\n    def __init__(self):\n        self._order = []\n    def _find(self): ...\n"
    read = "def f(run):\n    return run._order, getattr(run, '_find'), run._other, run.order\n"
    own = "class C:\n    def __init__(self):\n        self._order = self._order\n    def f(self, other):\n        return other._order\n"
    files = texts(run=run, high=read, low=own)
    names = source_tree.private_members([files["staticrt.executor.run"]])
    assert names == {"_order", "_find"}
    assert source_tree.private_reads(files["staticrt.api.high"], names) == {
        "staticrt.api.high:_order",
        "staticrt.api.high:_find",
    }
    assert source_tree.private_reads(files["staticrt.ops.low"], names) == set()
