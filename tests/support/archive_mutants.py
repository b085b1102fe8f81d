"""Hostile archives of `staticrt.save`: well-formed files whose program nobody would have saved.

A mutant's checksums fit, so that it reaches what lies behind the reader: other operators, constants, sizes, dtypes, edges,
facts about aliases and writes, and text.
"""

from __future__ import annotations

import copy

import torch

from tests.support.archive_body import (
    BOOL,
    DOUBLE,
    INT,
    LIST,
    STRING,
    TENSOR,
    Fields,
    add_constant,
    read_body,
    with_fields,
)

INTS = [
    0,
    1,
    2,
    3,
    -1,
    -2,
    7,
    63,
    64,
    2**20,
    2**31 - 1,
    2**31,
    -(2**31),
    2**33,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
]
DOUBLES = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 2.0**40]
LIBRARIES = ("aten::", "prims::", "staticrt::", "quantized", "mkldnn::", "onednn::", "inductor::", "c10d")


def all_operators():
    """[(name, schema)] of what this process registers."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        base, _, overload = name.partition(".")
        library, _, plain = base.partition("::")
        packet = getattr(getattr(torch.ops, library), plain, None)
        operator = getattr(packet, overload or "default", None)
        if isinstance(operator, torch._ops.OpOverload) and name.startswith(LIBRARIES):
            found.append((name, operator._schema))
    return found


class Mutator:
    """Changes archives.

    Args:
        canary: the path of a file that must not be touched, for texts.
    """

    def __init__(self, canary):
        self.canary = str(canary).encode()
        self.operators = all_operators()
        # Most of what is chosen at random is refused for its name: half the time, choose among the others.
        self.public = [
            (name, schema)
            for name, schema in self.operators
            if name.startswith("aten::") and not name.startswith("aten::_") and not name.endswith("out")
        ]

    def mutate(self, data, rng):
        """The bytes of a mutant of the archive `data`, and what was changed."""
        body = read_body(data)
        done = []
        for trace in body.traces:
            if rng.random() < 0.8:
                trace.packed, trace.choices, trace.plans = [], [], []
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
            trace = rng.choice(body.traces)
            program = trace.program
            if trace.guards is not None and rng.random() < 0.06:
                program = trace.guards
            while rng.random() < 0.3:
                bodies = [inner for node in program.nodes for inner in node.bodies]
                if not bodies:
                    break
                program = rng.choice(bodies)
            change = rng.choice(_CHANGES)
            done.append(f"{change.__name__}: {change(self, body, trace, program, rng)}")
        return with_fields(data, body), "; ".join(done)

    def constant(self, rng, tag=None):
        tag = rng.choice((0, BOOL, INT, INT, INT, DOUBLE, STRING, TENSOR, 8, LIST)) if tag is None else tag
        if tag == BOOL:
            return tag, rng.randrange(2)
        if tag == INT:
            return tag, rng.choice(INTS)
        if tag == DOUBLE:
            return tag, rng.choice(DOUBLES)
        if tag == STRING:
            return tag, rng.choice((self.canary, b"", b"mean", b"valid", b"reflect", b"\xff", b"a" * 1000))
        if tag == TENSOR:
            return tag, rng.randrange(3)
        if tag == LIST:
            item = rng.choice((BOOL, INT, INT, INT, DOUBLE, TENSOR))
            element = {BOOL: 1, INT: 2, DOUBLE: 3, TENSOR: 6}[item]
            return tag, Fields(
                element=element, items=[self.constant(rng, item) for _ in range(rng.randrange(6))]
            )
        if tag == 4:
            return tag, Fields(real=rng.choice(DOUBLES), imag=rng.choice(DOUBLES))
        if tag == 6:
            return tag, rng.choice((b"cpu", b"meta", b"cuda:0", b"x"))
        return tag, None


def _node(program, rng):
    return rng.choice(program.nodes) if program.nodes else None


def _num_values(program):
    outputs = sum(len(node.outputs) for node in program.nodes)
    return len(program.inputs) + len(program.constants) + outputs


def _is_used(program, index):
    number = len(program.inputs) + index
    return any(number in arg.values for node in program.nodes for arg in node.args)


def change_constant(mutator, body, trace, program, rng):
    """Another value of the same type, or of any."""
    used = [i for i in range(len(program.constants)) if _is_used(program, i)]
    if not used:
        return "none"
    constant = program.constants[rng.choice(used)]
    before = constant.value
    tag, value = before
    if tag == LIST and value.items and rng.random() < 0.8:
        items = list(value.items)
        at = rng.randrange(len(items))
        items[at] = mutator.constant(rng, items[at][0])
        if rng.random() < 0.3:
            items = [items[at]] * len(items)
        constant.value = tag, Fields(element=value.element, items=items)
    else:
        constant.value = mutator.constant(rng, tag if tag and rng.random() < 0.8 else None)
    return f"{before} -> {constant.value}"


def change_operator(mutator, body, trace, program, rng):
    """A node calls another operator, on arguments of the right number and often of the right type."""
    node = _node(program, rng)
    if node is None:
        return "none"
    before = program.ops[node.op].name
    name, schema = rng.choice(mutator.public if rng.random() < 0.7 else mutator.operators)
    _call(mutator, program, node, name, schema, rng)
    return f"{before} -> {name} {[arg.values for arg in node.args]}"


def same_arguments(mutator, body, trace, program, rng):
    """A node calls another operator that takes as many arguments."""
    node = _node(program, rng)
    if node is None:
        return "none"
    before = program.ops[node.op].name
    fitting = [(n, s) for n, s in mutator.operators if len(s.arguments) == len(node.args)]
    if not fitting:
        return "none"
    name, schema = rng.choice(fitting)
    program.ops.append(Fields(name=name.encode(), schema=str(schema).encode()))
    node.op = len(program.ops) - 1
    return f"{before} -> {name}"


def _call(mutator, program, node, name, schema, rng):
    program.ops.append(Fields(name=name.encode(), schema=str(schema).encode()))
    node.op = len(program.ops) - 1
    tensors = [v for arg in node.args for v in arg.values if v < _first_after(program, node)]
    node.args = [_argument(mutator, program, node, argument, tensors, rng) for argument in schema.arguments]
    node.aliases, node.written, node.bodies = [], [], []
    returns = len(schema.returns)
    node.unpacks_list = 0
    while len(node.outputs) < returns:
        node.outputs.append(Fields(name=b"more", is_tensor=1, dtype=6, device=0))
    if len(node.outputs) > returns and returns:
        _drop_outputs(program, node, returns)


def _first_after(program, node):
    first = len(program.inputs) + len(program.constants)
    for other in program.nodes:
        if other is node:
            return first
        first += len(other.outputs)
    return first


def _drop_outputs(program, node, keep):
    """Outputs after `keep` go; later values move down."""
    first, gone = _first_after(program, node) + keep, len(node.outputs) - keep
    del node.outputs[keep:]
    _renumber(program, first, first + gone, -gone)


def _renumber(program, first, last, by):
    def moved(value):
        return value if value < first else max(first - 1, 0) if value < last else value + by

    for node in program.nodes:
        for arg in node.args:
            arg.values = [moved(value) for value in arg.values]
    program.outputs = [moved(value) for value in program.outputs]


def _argument(mutator, program, node, argument, tensors, rng):
    kind = str(argument.type)
    value = None
    if "Tensor" in kind and "List" in kind:
        return Fields(is_list=1, values=[rng.choice(tensors or [0]) for _ in range(rng.randrange(4))])
    if "Tensor" in kind and not (kind.startswith("Optional") and rng.random() < 0.3):
        return Fields(is_list=0, values=[rng.choice(tensors or [0])])
    if kind.startswith("Optional") and (rng.random() < 0.5 or "Tensor" in kind):
        value = (0, None)
    elif "List" in kind:
        tag = INT if "int" in kind else DOUBLE if "float" in kind else BOOL
        element = {INT: 2, DOUBLE: 3, BOOL: 1}[tag]
        count = rng.choice((0, 1, 2, 2, 3, 4))
        items = [
            (INT, rng.choice((0, 1, 2, 3, 4, -1)))
            if tag == INT and rng.random() < 0.7
            else mutator.constant(rng, tag)
        ]
        value = (LIST, Fields(element=element, items=items * count))
    elif "str" in kind:
        value = mutator.constant(rng, STRING)
    elif "bool" in kind:
        value = mutator.constant(rng, BOOL)
    elif "float" in kind:
        value = mutator.constant(rng, DOUBLE)
    elif "Device" in kind:
        value = (6, b"cpu")
    elif "Generator" in kind:
        value = (0, None)
    else:
        value = (INT, rng.choice((0, 1, 2, 3, 4, -1))) if rng.random() < 0.7 else mutator.constant(rng, INT)
    first = add_constant(program, value)
    tensors[:] = [v + (v >= first) for v in tensors]
    return Fields(is_list=0, values=[first])


def change_edge(mutator, body, trace, program, rng):
    """A node reads another value, perhaps one that does not exist yet."""
    node = _node(program, rng)
    if node is None or not node.args:
        return "none"
    arg = rng.choice(node.args)
    most = _first_after(program, node) if rng.random() < 0.9 else _num_values(program) + 2
    if arg.values and rng.random() < 0.8:
        at = rng.randrange(len(arg.values))
        arg.values[at] = rng.randrange(max(most, 1))
    else:
        arg.is_list = rng.randrange(2)
        arg.values = [rng.randrange(max(most, 1)) for _ in range(rng.randrange(4))]
    return f"{program.ops[node.op].name} reads {[a.values for a in node.args]}"


def change_info(mutator, body, trace, program, rng):
    """What the program says of a value: its dtype, its device, whether it is a tensor."""
    infos = program.inputs + [info for node in program.nodes for info in node.outputs]
    if not infos:
        return "none"
    info = rng.choice(infos)
    if rng.random() < 0.8:
        info.dtype = rng.choice((0, 3, 4, 5, 6, 7, 9, 11, 15, 27, 43, 255))
    elif rng.random() < 0.5:
        info.device = rng.choice((0, 1, 254, 255))
    else:
        info.is_tensor ^= 1
    return f"{info}"


def change_facts(mutator, body, trace, program, rng):
    """What the program says of a node: aliases, writes, effects."""
    node = _node(program, rng)
    if node is None:
        return "none"
    what = rng.randrange(5)
    if what == 0:
        node.aliases = []
    elif what == 1:
        node.aliases.append(Fields(output=rng.randrange(2), arg=rng.randrange(3), may=rng.randrange(2)))
    elif what == 2:
        node.written = [] if node.written else [rng.randrange(3)]
    elif what == 3:
        node.has_effects ^= 1
    else:
        node.unpacks_list ^= 1
    return (
        f"{program.ops[node.op].name}: {node.aliases} {node.written} {node.has_effects} {node.unpacks_list}"
    )


def change_order(mutator, body, trace, program, rng):
    """Nodes swapped, dropped, repeated; outputs changed."""
    what = rng.randrange(3)
    if what == 0 and len(program.nodes) > 1:
        a, b = rng.sample(range(len(program.nodes)), 2)
        program.nodes[a], program.nodes[b] = program.nodes[b], program.nodes[a]
        return f"swap {a} {b}"
    if what == 1 and program.nodes:
        index = rng.randrange(len(program.nodes))
        node = program.nodes[index]
        first = _first_after(program, node)
        del program.nodes[index]
        _renumber(program, first, first + len(node.outputs), -len(node.outputs))
        return f"drop {index}"
    if program.outputs:
        program.outputs[rng.randrange(len(program.outputs))] = rng.randrange(_num_values(program) + 1)
    return f"outputs {program.outputs}"


def change_tensor(mutator, body, trace, program, rng):
    """Sizes, strides, offset, dtype or storage of a weight."""
    if not body.tensors:
        return "none"
    tensor = rng.choice(body.tensors)
    what = rng.randrange(5)
    if what == 0 and tensor.sizes:
        tensor.sizes[rng.randrange(len(tensor.sizes))] = rng.choice((0, 1, 2, 3, 5, 2**20, 2**40, -1))
    elif what == 1 and tensor.strides:
        tensor.strides[rng.randrange(len(tensor.strides))] = rng.choice((0, 1, 2, 2**40, -1))
    elif what == 2:
        tensor.dtype = rng.choice((0, 1, 3, 4, 5, 6, 7, 9, 11, 15, 23))
    elif what == 3:
        tensor.sizes, tensor.strides = rng.choice((([], []), ([0], [1]), ([1, 1], [1, 1]), ([4, 4], [0, 0])))
    else:
        other = rng.choice(body.tensors)
        for name in ("storage", "dtype", "sizes", "strides", "offset"):
            setattr(tensor, name, copy.copy(getattr(other, name)))
    return f"{tensor}"


def change_call(mutator, body, trace, program, rng):
    """What a trace takes, gives, and was worked out for it."""
    what = rng.randrange(8)
    if what == 0 and trace.leaves:
        leaf = rng.choice(trace.leaves)
        leaf.dtype, leaf.dim = rng.choice(((6, leaf.dim), (leaf.dtype, rng.randrange(6)), (4, leaf.dim)))
        return f"{leaf}"
    if what == 1 and trace.model_tensors:
        trace.model_tensors[rng.randrange(len(trace.model_tensors))] = rng.randrange(len(body.tensors))
    elif what == 2 and trace.symbols:
        symbol = rng.choice(trace.symbols)
        symbol.leaf, symbol.prop, symbol.dim = rng.randrange(2), rng.randrange(3), rng.randrange(4)
    elif what == 3 and trace.packed:
        packed = rng.choice(trace.packed)
        packed.tensor = rng.randrange(len(body.tensors))
        return f"packed {packed}"
    elif what == 4 and trace.choices:
        choice = rng.choice(trace.choices)
        choice.choice = rng.choice(INTS)
        return f"{choice}"
    elif what == 5 and trace.plans:
        plan = rng.choice(trace.plans)
        plan.offsets = [rng.choice((0, 64, 8, -64, 2**62, offset)) for offset in plan.offsets]
        return f"{plan}"
    elif what == 6:
        trace.structure = _scribbled(trace.structure, mutator, rng)
        return "structure"
    elif trace.outputs:
        trace.outputs[rng.randrange(len(trace.outputs))] = rng.randrange(-1, 3)
    return f"call {what}"


def change_text(mutator, body, trace, program, rng):
    """Names, conditions, the parameters of the call."""
    what = rng.randrange(4)
    if what == 0:
        body.calling = _scribbled(body.calling, mutator, rng)
    elif what == 1:
        body.name = rng.choice((mutator.canary, b"\xff", b"", b"__import__('os').system('touch x')"))
    elif what == 2:
        trace.autocast = rng.choice((b"bfloat16", b"x", mutator.canary))
    elif program.ops:
        program.ops[rng.randrange(len(program.ops))].name = rng.choice(
            (b"sym::pow", b"srt::cond", b"aten::from_file", b"x")
        )
    return f"text {what}"


def _scribbled(text, mutator, rng):
    text = bytearray(text)
    for _ in range(rng.choice((1, 1, 4))):
        if text:
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(3)] = rng.choice(
                (b"0", b"9", b"-", b'"', b"[", b"}", b"null", b"os:system", mutator.canary)
            )
    return bytes(text)


_CHANGES = (
    [change_constant] * 5
    + [change_operator] * 4
    + [same_arguments] * 2
    + [change_edge] * 3
    + [change_info] * 2
    + [change_facts] * 2
    + [change_order] * 2
    + [change_tensor] * 3
    + [change_call] * 2
    + [change_text]
)
