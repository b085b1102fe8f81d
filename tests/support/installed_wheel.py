"""What `.ci/package` runs in an environment that has the wheel and no compiler: `installed_wheel.py ARCHIVE`.

Every network of the zoo gives eager's answer. ARCHIVE is saved for the C++ example, and what the example prints for a
2×6 input is written to standard output.
"""

import pathlib
import shutil
import sys

import torch

import staticrt
from staticrt.models import zoo

for compiler in ("gcc", "g++", "cc", "c++", "clang", "clang++", "nvcc", "ninja", "cmake"):
    assert shutil.which(compiler) is None, f"{compiler} is in sight: {shutil.which(compiler)}"
where = pathlib.Path(staticrt.__file__).parent
assert where.is_relative_to(sys.prefix), f"{where} is not the wheel's"
for part in ("py.typed", "include/staticrt/staticrt.h", "share/cmake/staticrt/staticrtConfig.cmake"):
    assert (where / part).exists(), f"the wheel lacks {part}"

with torch.no_grad():
    for entry in zoo.ENTRIES:
        module, inputs = entry.build(), entry.inputs(variant=entry.trace_variant)
        wanted, got = module(*inputs), staticrt.compile(module)(*inputs)
        scale = max(
            float(leaf.abs().max()) for leaf in torch.utils._pytree.tree_leaves(wanted) if leaf.numel()
        )
        torch.testing.assert_close(got, wanted, rtol=entry.rtol, atol=entry.atol * max(1.0, scale))
    print(f"{len(zoo.ENTRIES)} networks of the zoo without a compiler", file=sys.stderr)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 3)).eval()
    staticrt.save(staticrt.compile(model), sys.argv[1], torch.randn(3, 6))
    answer = model((torch.arange(12, dtype=torch.float32) / 12).reshape(2, 6))
print(*(f"{value:.4f}" for value in answer.flatten().tolist()))
