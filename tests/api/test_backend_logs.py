"""`TORCH_LOGS="+staticrt"`: what the backend says while it compiles."""

from tests.support import run_fresh

PROGRAM = """
import os, sys
import torch

def run():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    fast = torch.compile(model, backend="staticrt")
    fast(torch.randn(2, 4)).sum().backward()
    with torch.no_grad():
        fast(torch.randn(2, 4))

run()
torch._dynamo.reset()
print("OTHER SETTINGS", file=sys.stderr)
os.environ["TORCH_LOGS"] = "staticrt"
torch._logging._internal._init_logs()  # reads the variable again
run()
"""


def test_debug_lines_show_graphs():
    done = run_fresh(PROGRAM, variables={"TORCH_LOGS": "+staticrt"})
    debug, info = done.stderr.split("OTHER SETTINGS")
    assert "compiled region 0 of" in debug
    assert "forward graph of" in debug
    assert "backward graph" in debug
    assert "aten.mm" in debug or "aten.addmm" in debug  # debug lines hold the graphs
    assert "compiled a graph of" in debug  # without gradients
    assert "compiled region 1 of" in info
    assert "aten.mm" not in info
    assert "aten.addmm" not in info
