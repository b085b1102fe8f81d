"""Graph trees on the devices of the tests."""

import pytest

from tests.support import graph_harness as harness


@pytest.fixture(autouse=True)
def each_tree_ends_with_a_garbage_collection(collects_own_garbage_only):
    """Which need not visit what was imported before."""


@pytest.fixture
def make_tree():
    """Makes trees; after the test nothing may be left of them."""
    trees = []

    def make(*args, **options):
        trees.append(harness.Tree(*args, **options))
        return trees[-1]

    yield make
    for tree in trees:
        tree.check_gone()


@pytest.fixture(params=["copy", "cpu_copy"])
def copying(request):
    """A device that captures as CUDA does."""
    return harness.device(request.param)


@pytest.fixture
def tree(make_tree, copying):
    """Upstream's rules on a device that captures as CUDA does."""
    return make_tree(copying)


@pytest.fixture
def cold(make_tree, copying):
    """The same without warmups."""
    return make_tree(copying, warmup=False)


@pytest.fixture
def cold_step(cold):
    """The same with the whole test as one step, as where upstream calls trees directly."""
    with cold.step():
        yield cold
