"""Hostile files of `torch.export.save`: other targets, constants, names, expressions and pickles in a whole file."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

from tests.support.archive_mutants import INTS

PYTHON_TARGETS = [
    "torch.hub.load",
    "os.system",
    "builtins.eval",
    "_operator.methodcaller",
    "torch.ops.higher_order.cond",
    "torch.load",
    "math.ceil",
    "torch.ops.aten",
    "torch.ops.load_library",
]


class _Runs:
    """Unpickling it opens a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def mutate(data, rng, mutator):
    """The bytes of a mutant of an exported file, and what was changed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    done = []
    for _ in range(rng.choice((1, 1, 2))):
        change = rng.choice(_CHANGES)
        done.append(f"{change.__name__}: {change(entries, rng, mutator)}")
        if change is change_entry:
            break  # a record that is cut short cannot be read for another change
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return made.getvalue(), "; ".join(done)


def _model(entries):
    (name,) = (name for name in entries if "/models/" in name)
    return name, json.loads(entries[name])


def _graph(model):
    return model["graph_module"]["graph"]


def change_target(entries, rng, mutator):
    name, model = _model(entries)
    node = rng.choice(_graph(model)["nodes"])
    if rng.random() < 0.15:
        target = rng.choice(PYTHON_TARGETS)
    else:
        plain, _schema = rng.choice(mutator.public if rng.random() < 0.7 else mutator.operators)
        base, _, overload = plain.partition(".")
        target = f"torch.ops.{base.replace('::', '.')}.{overload or 'default'}"
    before, node["target"] = node["target"], target
    entries[name] = json.dumps(model).encode()
    return f"{before} -> {target}"


def _places(value, found):
    """Every (container, key) in a JSON document whose value is plain."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(item, (dict, list)):
            _places(item, found)
        else:
            found.append((value, key))
    return found


def change_number(entries, rng, mutator):
    """A number in the arguments of a node, or anywhere in the graph."""
    name, model = _model(entries)
    graph = _graph(model)
    inside = rng.choice(graph["nodes"])["inputs"] if rng.random() < 0.8 else graph
    places = [
        (c, k)
        for c, k in _places(inside, [])
        if isinstance(c[k], (int, float)) and not isinstance(c[k], bool)
    ]
    if not places:
        return "none"
    container, key = rng.choice(places)
    before, container[key] = container[key], rng.choice(INTS)
    entries[name] = json.dumps(model).encode()
    return f"{before} -> {container[key]}"


def change_text(entries, rng, mutator):
    """A text anywhere in the model's document."""
    name, model = _model(entries)
    canary = mutator.canary.decode()
    places = [(c, k) for c, k in _places(model, []) if isinstance(c[k], str)]
    container, key = rng.choice(places)
    hostile = [
        f"open({canary!r}, 'w')",
        "x, y=print(1)",
        canary,
        "",
        "__import__('os').system('x')",
        "s0",
        "linear",
    ]
    other, place = rng.choice(places)
    before, container[key] = container[key], rng.choice([*hostile, other[place]])
    entries[name] = json.dumps(model).encode()
    return f"{key}: {before[:40]!r} -> {container[key][:60]!r}"


def change_edge(entries, rng, mutator):
    """A node reads another value."""
    name, model = _model(entries)
    graph = _graph(model)
    names = list(graph["tensor_values"])
    places = [(c, k) for node in graph["nodes"] for c, k in _places(node["inputs"], []) if c[k] in names]
    if not places:
        return "none"
    container, key = rng.choice(places)
    before, container[key] = container[key], rng.choice(names)
    entries[name] = json.dumps(model).encode()
    return f"{before} -> {container[key]}"


def change_pickle(entries, rng, mutator):
    """A pickle that opens a file, in the place of tensors."""
    places = [n for n in entries if "/data/" in n and not n.endswith(".json")]
    if not places:
        return "none"
    name = rng.choice(places)
    entries[name] = pickle.dumps(_Runs(mutator.canary.decode()))
    for config in [n for n in entries if n.endswith("_config.json")]:
        document = json.loads(entries[config])
        for payload in document["config"].values():
            payload["use_pickle"] = True
        if rng.random() < 0.7:
            entries[config] = json.dumps(document).encode()
    return name


def change_config(entries, rng, mutator):
    """What the file says of a weight: its place, sizes, dtype."""
    configs = [n for n in entries if n.endswith("_config.json") and json.loads(entries[n])["config"]]
    if not configs:
        return "none"
    name = rng.choice(configs)
    document = json.loads(entries[name])
    container, key = rng.choice(_places(document["config"], []))
    before = container[key]
    container[key] = rng.choice(INTS) if isinstance(before, int) else mutator.canary.decode()
    entries[name] = json.dumps(document).encode()
    return f"{key}: {before} -> {container[key]}"


def change_entry(entries, rng, mutator):
    """A record more, less, or of other bytes."""
    folder = next(iter(entries)).partition("/")[0]
    what = rng.randrange(3)
    if what == 0:
        name = rng.choice(
            (f"{folder}/data/aotinductor/model/x.so", f"{folder}/../../x", f"{folder}/extra/x.py")
        )
        entries[name] = b"\x7fELF"
    else:
        name = rng.choice(list(entries))
        entries[name] = b"" if what == 1 else entries[name][: len(entries[name]) // 2]
    return f"{what} {name}"


_CHANGES = [change_target] * 3 + [change_number] * 4 + [change_text] * 3 + [change_edge] * 2
_CHANGES += [change_pickle, change_config, change_config, change_entry]
