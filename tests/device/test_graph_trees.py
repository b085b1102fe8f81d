"""The scenarios of graph trees (tests/graphs) on the simulated accelerator: its captures, its pools, its streams."""

import inspect
import re

import pytest
import torch

from tests.graphs import (
    conftest,
    test_autograd,
    test_cloning,
    test_conjugates,
    test_errors,
    test_explain,
    test_liveness,
    test_mutation,
    test_order,
    test_overrides,
    test_path_ends,
    test_static,
    test_swapped,
    test_switches,
)
from tests.support import graph_harness as harness

MODULES = (
    *(test_autograd, test_cloning, test_conjugates, test_errors, test_explain, test_liveness, test_mutation),
    *(test_order, test_overrides, test_path_ends, test_static, test_swapped, test_switches),
)
ON_A_TREE = {"tree", "cold", "cold_step", "copying", "make_tree"}
FIXTURES_OF_THEIR_OWN = {"device", "name", "any_tree", "made", "swapping"}
# Scenarios of another device, and why.
LEFT_OUT = {
    "test_poison_reaches_every_access": "converts tensors to numpy",
    "test_a_sparse_output_runs_plain": "sim has no sparse tensors",
    "test_threads_capture_on_their_own": "threads do not inherit the default device",
    "test_a_backward_follows_its_forward": "autograd's thread of a device does not see the harness' override",
    "test_an_input_that_lies_in_the_pool_keeps_its_bits_when_a_capture_fails": "asks for a CPU capture",
    "test_values_that_decide_run_plain": "sim's words are in test_graphs.py",
    "test_every_invariant_is_needed": "switches off parts of the test devices",
    "test_d5_what_is_known_of_a_function_goes_with_it": "sim gives each static input the same address",
}


def scenarios():
    """Tests of trees, but for those that name the device they run on."""
    for module in MODULES:
        for name, test in vars(module).items():
            if not name.startswith("test_") or name in LEFT_OUT:
                continue
            arguments = set(inspect.signature(test).parameters)
            names_a_device = re.search(r"FakeBackend|device\(", inspect.getsource(test))
            if arguments & ON_A_TREE and not arguments & FIXTURES_OF_THEIR_OWN and not names_a_device:
                yield name, test


globals().update(scenarios())


@pytest.fixture(autouse=True)
def on_sim():
    """Tensors are made on sim."""
    with torch.device("sim:0"):
        yield


@pytest.fixture
def copying():
    return harness.device("sim")


@pytest.fixture(autouse=True)
def trees_without_a_device(monkeypatch):
    monkeypatch.setattr(harness, "DEFAULT_DEVICE", "sim")


make_tree, tree = conftest.make_tree, conftest.tree
cold, cold_step = conftest.cold, conftest.cold_step
