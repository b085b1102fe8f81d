"""`staticrt::tree_ensemble` against a walk in Python, and on tables that are not trees."""

import operator

import numpy as np
import pytest
import torch

import staticrt

LEAF, MEMBER = -1, 6
TESTS = [operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne]
SUM, MIN, MAX = range(3)


def tables(seed, *, modes, trees=11, features=5, targets=1, dtype=np.float32, sparse=False, missing=False):
    """Random trees: (nodes, thresholds, members, roots, targets, weights) as arrays."""
    random = np.random.default_rng(seed)
    nodes, thresholds, owners, weights, roots = [], [], [], [], []

    def grow(level):
        mine = len(nodes)
        nodes.append(None)
        thresholds.append(float(random.integers(-2, 3)) / 2)
        if level == 5 or (level > 0 and random.random() < 0.2):
            named = [int(random.integers(targets))] if sparse else list(range(targets))
            nodes[mine] = [0, mine, mine, LEAF, 0, len(owners), len(named)]
            owners.extend(named)
            weights.extend(random.standard_normal(len(named)))
            return mine
        true, false = grow(level + 1), grow(level + 1)
        lost = int(missing and random.random() < 0.5)
        nodes[mine] = [
            int(random.integers(features)),
            true,
            false,
            int(random.choice(modes)),
            lost,
            0,
            0,
        ]
        return mine

    for _ in range(trees):
        roots.append(grow(0))
    members = random.integers(-2, 3, [len(nodes), 3]) / 2
    members[random.random(members.shape) < 0.3] = np.nan
    return (
        np.array(nodes, np.int32),
        np.array(thresholds, dtype),
        members.astype(dtype) if MEMBER in modes else None,
        np.array(roots, np.int32),
        np.array(owners, np.int32),
        np.array(weights, dtype),
    )


def walk(x, nodes, thresholds, members, roots, owners, weights, targets, aggregate):
    """Totals in the order of the trees, and which targets were spoken of."""
    totals = np.zeros([len(x), targets], x.dtype)
    said = np.zeros([len(x), targets], bool)
    for row, values in enumerate(x):
        for root in roots:
            node = root
            while nodes[node][3] != LEAF:
                feature, true, false, mode, lost = nodes[node][:5]
                value = values[feature]
                holds = (
                    value in members[node] if mode == MEMBER else bool(TESTS[mode](value, thresholds[node]))
                )
                node = true if holds or (lost and np.isnan(value)) else false
            first, count = nodes[node][5:]
            for i in range(first, first + count):
                cell = row, owners[i]
                if aggregate == SUM:
                    totals[cell] += weights[i]
                elif not said[cell]:
                    totals[cell] = weights[i]
                else:
                    totals[cell] = (min if aggregate == MIN else max)(totals[cell], weights[i])
                said[cell] = True
    return totals, said


def arguments(x, made):
    return torch.from_numpy(x), *(None if part is None else torch.from_numpy(part) for part in made)


CASES = {
    "one target": {"modes": [0]},
    "less": {"modes": [1]},
    "at least": {"modes": [2]},
    "greater": {"modes": [3]},
    "equal": {"modes": [4]},
    "unequal": {"modes": [5]},
    "all tests": {"modes": range(6), "targets": 3},
    "members": {"modes": [0, MEMBER], "targets": 2},
    "missing values": {"modes": [0], "missing": True},
    "one target a leaf": {"modes": [0], "targets": 4, "sparse": True, "trees": 3},
    "a leaf alone": {"modes": [0], "trees": 1, "targets": 2},
    "float64": {"modes": [0, 2], "dtype": np.float64, "targets": 2},
}


@pytest.mark.parametrize("aggregate", [SUM, MIN, MAX])
@pytest.mark.parametrize("name", CASES)
def test_totals_are_those_of_a_walk(name, aggregate):
    """Bitwise: trees are added in their order for any number of rows, in the operator and in prepared calls."""
    case = CASES[name]
    targets = case.get("targets", 1)
    made = tables(7, **case)
    random = np.random.default_rng(1)

    tensors = arguments(np.zeros([1, 5], made[1].dtype), made)[1:]

    def model(x):
        return torch.ops.staticrt.tree_ensemble(x, *tensors, targets, aggregate, True)

    compiled = staticrt.compile(model)
    for rows in (1, 7, 8, 9, 131, 300, 0):
        x = (np.round(random.standard_normal([rows, 5]) * 2) / 2).astype(made[1].dtype)
        x[random.random(x.shape) < 0.1] = np.nan
        totals, said = walk(x, *made, targets, aggregate)
        with torch.no_grad():
            answers = [model(torch.from_numpy(x))] + [compiled(torch.from_numpy(x)) for _ in range(3)]
        for got in answers:
            np.testing.assert_array_equal(got[0].numpy(), totals)
            np.testing.assert_array_equal(got[1].numpy(), said)
    kernels = str(compiled.explain())
    assert "tree walk" in kernels
    assert not compiled.explain().eager


@pytest.mark.usefixtures("num_threads_stays")
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_shared_among_threads(threads):
    made = tables(3, modes=[0], trees=60)
    x = np.random.default_rng(0).standard_normal([1500, 5]).astype(np.float32)
    torch.set_num_threads(threads)
    got, said = torch.ops.staticrt.tree_ensemble(*arguments(x, made), 1, SUM, False)
    assert said.shape == (0, 1)
    np.testing.assert_array_equal(got.numpy()[::50], walk(x[::50], *made, 1, SUM)[0])


def test_tables_of_any_numbers_are_walked_within_their_bounds():
    """An archive may hold anything: circles, children and features that are not there. Nothing is read outside, and
    every walk ends."""
    random = np.random.default_rng(0)
    for _ in range(300):
        nodes, thresholds, members, roots, owners, weights = tables(1, modes=[0, MEMBER], trees=2, targets=2)
        for table in (nodes, roots, owners):
            places = random.integers(0, table.size, 6)
            table.reshape(-1)[places] = random.choice(
                [-1, 0, 1, 2, 5, 7, 10**6, 2**31 - 1, -(2**31), int(random.integers(len(nodes)))], 6
            )
        x = random.standard_normal([9, 5]).astype(np.float32)
        made = (nodes, thresholds, members, roots, owners, weights)
        got, said = torch.ops.staticrt.tree_ensemble(*arguments(x, made), 2, SUM, True)
        assert got.shape == said.shape == (9, 2)


def test_arguments_of_other_types_are_refused():
    made = list(tables(1, modes=[0]))
    x = np.zeros([2, 5], np.float32)
    for position, part in (
        (0, made[0].astype(np.int64)),
        (0, made[0][:, :6].copy()),
        (1, made[1][:-1].copy()),
    ):
        wrong = [*made]
        wrong[position] = part
        with pytest.raises(Exception, match="tree_ensemble"):
            torch.ops.staticrt.tree_ensemble(*arguments(x, wrong), 1, SUM, False)
    with pytest.raises(Exception, match="aggregate 3"):
        torch.ops.staticrt.tree_ensemble(*arguments(x, made), 1, 3, False)
    with pytest.raises(Exception, match="x is float32"):
        torch.ops.staticrt.tree_ensemble(
            torch.zeros(2, 5, dtype=torch.int64), *arguments(x, made)[1:], 1, 0, False
        )
