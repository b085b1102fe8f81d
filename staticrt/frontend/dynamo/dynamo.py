"""Models that cannot be traced whole: Dynamo splits them where they need Python; each partial graph is traced as usual.

All private names of Dynamo are here.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import operator
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from staticrt import locks, tuning
from staticrt.frontend import budget
from staticrt.frontend.dynamo import differences, interrupts, patches
from staticrt.frontend.dynamo.parallel import has_small_buckets, in_small_buckets
from staticrt.frontend.graph import KnownInputs
from staticrt.frontend.guards import effects
from staticrt.frontend.guards.code_objects import CodeSet
from staticrt.frontend.progress import long_work
from staticrt.frontend.thread_state import keeping_thread_state
from staticrt.frontend.tracing import compiling

# How Dynamo is set while it compiles for us.
_CONFIG = {
    "suppress_errors": True,  # a frame that it fails on runs eagerly; the others stay compiled
    "allow_rnn": True,  # nn.LSTM and its kin are operators like others
    "trace_numpy": False,  # numpy stays numpy: its emulation differs in dtypes
    "allow_unspec_int_on_nn_module": True,  # a counter on a module is not a constant
    "skip_nnmodule_hook_guards": False,  # a hook that is added later is seen
    "accumulated_recompile_limit": 1 << 16,  # of all models of one class; each has a limit of its own
}
_COMPILE = inspect.signature(torch.compile).parameters
# Called by a profiler, also while Dynamo looks at each frame.
_WATCHERS = os.path.dirname(os.path.abspath(effects.__file__)) + os.sep
_MARK = "_is_torch_compile"  # an attribute of what `torch.compile` returns


class PartialGraphs:
    """A function run as compiled partial graphs with eager Python in between.

    Dynamo keeps compiled code and callbacks with the code that ran, which may belong to a class: neither refers to the
    function here, which could hold a model.

    Args:
        function: the model.
        make_graph: gives the callable that runs one partial graph, from a `GraphModule` and example inputs.
        dynamic: as in `torch.compile`.
        shown: what is shown where Dynamo takes long; "" shows nothing.
        fullgraph: raise instead of splitting.
        max_traces: graphs kept for one code object; None: Dynamo's own limit.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        make_graph: Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]],
        dynamic: bool | None,
        shown: str = "",
        fullgraph: bool = False,
        max_traces: int | None = None,
    ) -> None:
        self.breaks: list[tuple[str, str]] = []  # reason, model line
        self._failures: list[tuple[str, str]] = []  # those of the call under way
        modules = function.modules() if isinstance(function, torch.nn.Module) else ()
        small_buckets = any(map(has_small_buckets, modules))
        function = _with_own_code(function)
        own: dict[str, Any] = {}
        if "isolate_recompiles" in _COMPILE:  # torch 2.12 and later
            own["isolate_recompiles"] = True
        config: dict[str, Any] = dict(_CONFIG)
        if fullgraph:
            config["suppress_errors"] = False
        if max_traces is not None:
            config["recompile_limit"] = max_traces
        if small_buckets:
            config["optimize_ddp"] = False
        import torch._dynamo as dynamo

        if hasattr(dynamo.config, "invalidate_compile_context_weakrefs"):  # torch 2.13 and later
            config["invalidate_compile_context_weakrefs"] = True  # they keep parameters from being swapped

        # What `torch.compile` does with a backend that is a function.
        def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any], **_options: Any) -> Callable[..., Any]:
            if reason := differences.of_graph(gm):
                if config["suppress_errors"]:
                    raise differences.Differs(reason)
                return gm.forward
            return make_graph(gm, inputs)

        with _validation_kept():
            context: Any = dynamo.optimize(backend, nopython=fullgraph, dynamic=dynamic, **own)
        if callable(getattr(context, "callback", None)):  # else Dynamo is switched off
            context.callback = _Configured(context.callback, config, self.breaks, self._failures, shown)
        attributes = vars(function) if isinstance(function, torch.nn.Module) else {}
        is_marked = _MARK in attributes
        self._run = context(function)
        if not is_marked:  # what Dynamo returns for a module hands its attributes on to the module
            attributes.pop(_MARK, None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the function.

        Raises:
            NotCompiled: Dynamo cannot run it at all; nothing was run.
        """
        import torch._dynamo as dynamo
        from torch._dynamo.utils import graph_break_reasons

        known = len(graph_break_reasons)
        try:
            result = self._run(*args, **kwargs)
            self.breaks += [failure for failure in self._failures if failure not in self.breaks]
            return result
        except dynamo.exc.TorchDynamoException as error:
            raise NotCompiled(_told(error)) from error
        finally:
            self._failures.clear()
            for reason in graph_break_reasons[known:]:
                self._add_break(reason)

    def _add_break(self, reason: Any) -> None:
        text = str(reason.reason).strip().split("\n")[0]
        if text.startswith("DDPOptimizer"):
            return  # cut at a bucket of gradients: nothing runs in between
        stack = list(reason.user_stack or [])
        where = f"{os.path.basename(stack[-1].filename)}:{stack[-1].lineno}" if stack else ""
        if (text, where) not in self.breaks:
            self.breaks.append((text, where))


def _told(error: BaseException | None) -> str:
    """The first line of an error of Dynamo, or of a part that our own backend refused."""
    return str(getattr(error, "inner_exception", error)).strip().split("\n")[0]


@contextlib.contextmanager
def _validation_kept() -> Iterator[None]:
    """Distributions go on to check their arguments: Dynamo, which cannot trace that, turns it off for the whole process."""
    before = torch.distributions.Distribution._validate_args
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)


class _Failures(logging.Filter):
    """Takes what Dynamo logs where it leaves code to eager, with the stack: `explain()` gives the reason."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.local()

    @contextlib.contextmanager
    def to(self, failures: list[tuple[str, str]], where: str) -> Iterator[None]:
        """Add failures within the context, which belong to the code at `where`, to `failures`."""
        outer = getattr(self._thread, "taking", None)
        self._thread.taking = failures, where
        try:
            yield
        finally:
            self._thread.taking = outer

    def filter(self, record: logging.LogRecord) -> bool:
        taking = getattr(self._thread, "taking", None)
        is_wanted = logging.getLogger(record.name).isEnabledFor(logging.INFO)  # as TORCH_LOGS asks
        if taking is None or is_wanted or not (record.exc_info or record.name == _OF_GRAPH_BREAKS):
            return True
        if record.exc_info:
            failures, where = taking
            failures.append((_told(record.exc_info[1]), where))
        return False

    def is_taking(self) -> bool:
        """Whether this thread compiles for us."""
        return getattr(self._thread, "taking", None) is not None


_OF_GRAPH_BREAKS = "torch._dynamo.variables.tensor"  # at `item()`
_failures = _Failures()
for _name in ("torch._dynamo.convert_frame", _OF_GRAPH_BREAKS):
    logging.getLogger(_name).addFilter(_failures)


class _Configured:
    """Compiles a frame with Dynamo set as we need it, in bounded time.

    Setting Dynamo around each call instead would cost more than the call of a small model, and would reach what the
    model compiles by itself.

    Args:
        callback: Dynamo's, which the interpreter calls for frames without compiled code.
        config: settings.
        breaks: gets the functions that are left to eager.
        failures: gets the functions that Dynamo fails on, maybe since the call is wrong.
        shown: as of `PartialGraphs`.
    """

    def __init__(
        self,
        callback: Callable[..., Any],
        config: dict[str, Any],
        breaks: list[tuple[str, str]],
        failures: list[tuple[str, str]],
        shown: str,
    ) -> None:
        functools.update_wrapper(self, callback)  # Dynamo knows its callbacks by attributes
        self._callback = callback
        self._config = config
        self._breaks = breaks
        self._failures = failures
        self._shown = shown
        self._abandoned = CodeSet()

    def __call__(self, frame: Any, *others: Any, **more: Any) -> Any:
        code = frame.f_code
        if code in self._abandoned:
            return _left_to_eager()
        if code.co_filename.startswith(_WATCHERS):
            return _skipped("it watches model code")
        return keeping_thread_state(
            lambda: interrupts.delivering(lambda: self._compile(frame, *others, **more))
        )

    def _compile(self, frame: Any, *others: Any, **more: Any) -> Any:
        import torch._dynamo as dynamo

        code = frame.f_code
        where = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
        config = self._config
        if in_small_buckets():
            config = {**config, "optimize_ddp": False}
        if "isolate_recompiles" not in _COMPILE:  # graphs of other callables count as well
            limit = config.get("recompile_limit", dynamo.config.recompile_limit)
            config = {**config, "recompile_limit": limit + self._kept_by_others(others[0])}
        try:
            with (
                long_work(self._shown, bool(self._shown)),
                budget.charged(tuning.SHARE_OF_TRACE_SECONDS),
                _interruptible(),
                compiling.dynamo_compiles(),
                differences.refused(bool(config["suppress_errors"])),
                _failures.to(self._failures, where),
                dynamo.config.patch(config),  # type: ignore[attr-defined]
            ):
                return self._callback(frame, *others, **more)
        except (budget.OutOfTime, differences.Differs) as error:
            self._abandoned.add(code)
            self._breaks.append((str(error) or budget.reason(), where))
            return _left_to_eager()

    def _kept_by_others(self, entry: Any) -> int:
        """How many graphs of a code object, in Dynamo's list from `entry` on, belong to other compiled callables."""
        from torch._dynamo.eval_frame import innermost_backend

        ours, count = innermost_backend(self._callback), 0
        while entry is not None:
            count += entry.backend is not ours
            entry = entry.next
        return count


def _left_to_eager() -> Any:
    """Tells the interpreter to run a frame eagerly; frames that it calls are compiled.

    This holds for this frame only: models share code, and it may be compiled for other sizes.
    """
    return _skipped("staticrt leaves it to eager", apply_to_code=False)


def _skipped(reason: str, apply_to_code: bool = True) -> Any:
    from torch._dynamo.types import ConvertFrameReturn

    skipped = ConvertFrameReturn(apply_to_code=apply_to_code)
    skipped.skip_reason = reason  # torch 2.11 does not read it
    return skipped


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let `budget.check` stop Dynamo at each instruction that it interprets for this thread."""
    from torch._dynamo.convert_frame import compile_lock

    locks.free_in_children(compile_lock)
    _patch()
    patches.install()
    with compile_lock:
        yield


@functools.cache
def _patch() -> None:
    """Let Dynamo check the time budget of the thread at each instruction, and not warn of a function that it leaves to
    eager: `explain()` gives the reason. Permanent; other threads are not checked, and warn."""
    from torch._dynamo import utils
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    warn_once = utils.warn_once

    @functools.wraps(warn_once)
    def told(text: str, stacklevel: int = 1) -> None:
        if not _failures.is_taking():
            warn_once(text, stacklevel + 1)

    utils.warn_once = told  # type: ignore[assignment]

    step = InstructionTranslatorBase.step

    @functools.wraps(step)
    def checked(self: Any) -> bool:
        budget.check()
        return step(self)

    InstructionTranslatorBase.step = checked  # type: ignore[method-assign]


def known_inputs(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> KnownInputs:
    """What Dynamo's guards guarantee about the arguments of one of its graphs.

    Args:
        inputs: example arguments, one per placeholder.
    """
    weights: set[int] = set()
    sizes: dict[int, tuple[bool, ...]] = {}
    for index, (node, value) in enumerate(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True)):
        if not isinstance(value, torch.Tensor):
            continue
        fake = node.meta.get("example_value")
        if isinstance(fake, torch.Tensor) and fake.dim() == value.dim() and fake.layout == torch.strided:
            sizes[index] = tuple(
                isinstance(size, int) and isinstance(stride, int)
                for size, stride in zip(fake.shape, fake.stride(), strict=True)
            )
        if isinstance(value, torch.nn.Parameter) or "._buffers[" in _source(node):
            weights.add(index)
    symbolic = frozenset(i for i, value in enumerate(inputs) if isinstance(value, torch.SymInt))
    return KnownInputs(symbolic, frozenset(weights), sizes)


def without_attributes(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, tuple[str, ...]]:
    """The graph with the tensors that it holds as attributes as further arguments, and the names of these.

    Dynamo passes an optimiser's state to its graph this way, and removes it when the optimiser is deleted. A trace of the
    graph would keep it alive.
    """
    held = {
        str(node.target)
        for node in gm.graph.find_nodes(op="get_attr")
        if isinstance(getattr(gm, str(node.target), None), torch.Tensor)
        and not str(node.target).startswith("_tensor_constant")
    }
    if not held:
        return gm, ()
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    inner = next(node for node in graph.nodes if node.op != "placeholder")
    arguments: dict[str, torch.fx.Node] = {}
    taken = [node for node in graph.find_nodes(op="get_attr") if str(node.target) in held]
    for node in taken:
        name = str(node.target)
        if name not in arguments:
            with graph.inserting_before(inner):
                arguments[name] = graph.placeholder(name)
            arguments[name].meta = dict(node.meta)
        node.replace_all_uses_with(arguments[name])
    for node in taken:
        graph.erase_node(node)
    return torch.fx.GraphModule(gm, graph), tuple(arguments)


def write_powers(gm: torch.fx.GraphModule) -> None:
    """Write powers of negative numbers as calls: torch.fx writes `(-2) ** n` as `-2 ** n`, which is `-(2 ** n)`."""
    nodes = [
        node
        for node in gm.graph.find_nodes(op="call_function", target=operator.pow)
        if isinstance(node.args[0], (int, float))
    ]
    for node in nodes:
        node.target = pow
    if nodes:
        gm.recompile()


def take_numbers(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[int, ...]:
    """Indices of arguments that are tensors of one number, of which the graph uses nothing but the number.

    The graph takes the numbers themselves from now on.
    """
    found = []
    for index, (node, value) in enumerate(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True)):
        if not isinstance(value, torch.Tensor) or value.dim() or value.dtype != torch.float64:
            continue
        uses = list(node.users)
        if uses and all(use.op == "call_method" and use.target == "item" for use in uses):
            found.append(index)
            for use in uses:
                use.replace_all_uses_with(node)
                gm.graph.erase_node(use)
    if found:
        gm.recompile()
    return tuple(found)


def _source(placeholder: torch.fx.Node) -> str:
    """Where Dynamo reads an argument: "L['self']._buffers['mean']"; "" if it does not say."""
    source = getattr(placeholder, "_dynamo_source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A module of torch's own, called by a function of its own.

    Dynamo runs such modules from one function of its own and limits recompiles by code: without this, the ninth
    `nn.LSTM` of a process would not be compiled.
    """
    forward = getattr(type(function), "forward", None)
    where = getattr(getattr(forward, "__code__", None), "co_filename", "")
    if not isinstance(function, torch.nn.Module) or not where.startswith(os.path.dirname(torch.__file__)):
        return function

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    run.__code__ = run.__code__.replace()
    return run


class NotCompiled(Exception):
    """Dynamo gave up."""
