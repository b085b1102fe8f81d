"""Private names of torch are listed with their users, exist in this torch, and are chosen by name, not by version."""

import ast
import importlib

import pytest
import torch

from tests.support import private_names

FOUND = private_names.users()


def test_every_private_name_is_listed(capsys):
    assert private_names.differences(FOUND, private_names.listed()) == []
    with capsys.disabled():
        print(f"\n{len(FOUND)} private names of torch")


def test_an_unlisted_name_and_a_stale_one_are_told():
    source = """
import torch
import torch._dynamo.config as config
from torch.utils import _pytree as tree

def f(x):
    from torch._dynamo import exc
    with config.patch(a=1), torch.no_grad():
        raise exc.SkipFrame(torch._C._group(x), tree.tree_leaves(x), torch.__version__, torch.ops.aten._x.default)
"""
    names = private_names.private_names(source)
    assert names == {
        "torch._dynamo.config.patch",
        "torch._dynamo.exc.SkipFrame",
        "torch._C._group",
        "torch.utils._pytree.tree_leaves",
        "torch.ops.aten._x",
    }
    found = {name: {"staticrt/graphs/new.py"} for name in names}
    table = dict.fromkeys(names - {"torch._C._group"}, "graphs") | {"torch._old": "graphs"}
    assert private_names.differences(found, table) == [
        "torch._C._group is not listed; staticrt/graphs/new.py uses it",
        "torch._old is listed, but not used",
    ]


@pytest.mark.parametrize("name", sorted(FOUND))
def test_this_torch_has_the_name(name):
    parts = name.split(".")
    value = torch
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(value, part):
            importlib.import_module(".".join(parts[:i]))
        value = getattr(value, part)


def test_nothing_compares_torchs_version():
    for folder in private_names.FOLDERS:
        for path in sorted((private_names.ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Compare) and path.name != "native.py":  # which tells builds apart
                    assert "torch.__version__" not in ast.unparse(node), (
                        f"{path}:{node.lineno}: ask for the name"
                    )
