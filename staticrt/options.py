"""Every option of `staticrt.compile`, declared once."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from staticrt.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Option:
    """One option.

    Args:
        name: keyword of `staticrt.compile`.
        types: accepted types.
        default: its value when not given.
        doc: one sentence.
        choices: accepted values, where they are few.
        minimum: smallest accepted number.
        maximum: largest accepted number.
    """

    name: str
    types: tuple[type, ...]
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    minimum: int | None = None
    maximum: int | None = None

    def check(self, value: Any) -> None:
        """Raise OptionError if `value` is not accepted."""
        wrong_type = not isinstance(value, self.types) or (isinstance(value, bool) and bool not in self.types)
        if wrong_type:
            expected = " or ".join("None" if t is type(None) else t.__name__ for t in self.types)
            raise OptionError(
                f"option {self.name!r} takes {expected}, got {value!r} ({type(value).__name__})", fix=self.doc
            )
        if self.choices and value not in self.choices:
            raise OptionError(
                f"option {self.name!r} is one of {', '.join(map(repr, self.choices))}, got {value!r}",
                fix=self.doc,
            )
        # Not value < minimum, and not value > maximum: nan is not a number of the range either.
        if self.minimum is not None and value is not None and not value >= self.minimum:
            raise OptionError(f"option {self.name!r} is at least {self.minimum}, got {value!r}", fix=self.doc)
        if self.maximum is not None and value is not None and not value <= self.maximum:
            raise OptionError(f"option {self.name!r} is at most {self.maximum}, got {value!r}", fix=self.doc)


OPTIONS: tuple[Option, ...] = (
    Option(
        "dynamic",
        (bool, type(None)),
        None,
        "None or True: sizes stay symbolic and other sizes need no new trace. False: every size is a constant.",
    ),
    Option(
        "executor",
        (str,),
        "auto",
        "What runs the graph: 'static' (the C++ runtime), 'reference' (operator by operator), 'auto' (best there is).",
        choices=("auto", "static", "reference"),
    ),
    Option(
        "graphs",
        (bool, object),
        False,
        "Record each program's run once per signature and replay it: True, or a staticrt.graphs.GraphContext.",
    ),
    Option(
        "plan_graphs",
        (bool,),
        False,
        "On devices: capture each prepared program once for its stream, and run it in later calls by one launch of the driver's graph.",
    ),
    Option(
        "max_traces",
        (int,),
        16,
        "Traces kept for one compiled callable; further ones run eagerly.",
        minimum=1,
    ),
    Option(
        "trace_seconds",
        (float, int, type(None)),
        30,
        "CPU seconds that tracing may take within one call without gradients; what is not traced by then runs "
        "eagerly. None, or with deterministic or fullgraph: no bound.",
        minimum=0,
    ),
    Option(
        "fullgraph",
        (bool,),
        False,
        "Raise TraceError instead of splitting the model or running it eagerly.",
    ),
    Option("passes", (bool,), True, "Run the graph passes; off shows the graph as traced."),
    Option(
        "prepared",
        (bool,),
        True,
        "Prepare a program for each input signature; off: every call takes the general path.",
    ),
    Option(
        "max_prepared",
        (int, type(None)),
        None,
        "Prepared programs kept for one trace, the least recent go; None: 64, and up to 256 small ones.",
        minimum=1,
    ),
    Option(
        "out_variants", (bool,), True, "Write results into planned memory; off: every operator allocates."
    ),
    Option(
        "optimize_memory", (bool,), True, "Let values share memory on the general path; off: none shares."
    ),
    Option(
        "cleanup_activations",
        (bool,),
        False,
        "Give the general path's memory back after each call; with prepared programs it always is.",
    ),
    Option(
        "manage_outputs",
        (bool,),
        False,
        "Keep results in memory of the runtime until deallocate_output_tensors().",
    ),
    Option("training", (bool,), True, "Compile calls that need gradients; off: they run eagerly."),
    Option(
        "joint_trace",
        (bool,),
        True,
        "Training: record forward and backward in one trace, without Dynamo and AOTAutograd, where the call allows it; off: by these.",
    ),
    Option(
        "activation_memory_budget",
        (float, int, type(None)),
        None,
        "Training: share of the activations that may be kept for the backward, 0 to 1; None: torch's setting.",
        minimum=0,
        maximum=1,
    ),
    Option(
        "double_backward",
        (bool,),
        True,
        "Training: keep references to a region's inputs, so that its gradients can be differentiated.",
    ),
    Option(
        "backward_node",
        (str,),
        "auto",
        "Training: the autograd node that joins forward and backward: 'native' (in C++; an error where it does not fit), "
        "'aot' (AOTAutograd's runtime), 'auto' (native where it fits).",
        choices=("auto", "aot", "native"),
    ),
    Option(
        "min_region_nodes",
        (int,),
        5,
        "Training: a supported part between unsupported operators with fewer compute nodes runs eagerly.",
        minimum=1,
    ),
    Option(
        "max_plans",
        (int,),
        16,
        "Training: plans kept for one graph, one for each set of defined gradients; the least recent go.",
        minimum=1,
    ),
    Option(
        "accelerators",
        (str, type(None)),
        None,
        "An accelerator that compiles subgraphs of the graph: a name ('tensorrt'), 'auto' (the first that is available).",
    ),
    Option(
        "freeze",
        (bool, type(None)),
        None,
        "None: what is made of weights alone (packed, folded) is kept, and made anew when they change. "
        "True: weights never change after the first call. False: nothing is kept.",
    ),
    Option(
        "weight_memory",
        (float, int, type(None)),
        None,
        "Bytes that packed copies of weights may take for one signature, as a share of the weights' bytes: 0 allows none, "
        "1 allows all, also those that take more than their weight, and is faster where arithmetic bounds a model. None: small weights are packed, and large ones are read where they lie if kernels can.",
        minimum=0,
        maximum=1,
    ),
    Option(
        "donate",
        (str, tuple, list),
        (),
        "Arguments that the caller gives up with each call, by name: their bytes hold values of the run or a result, "
        "and every later use of them raises.",
    ),
    Option(
        "inter_op_threads",
        (int,),
        1,
        "Threads that run independent kernels of one call beside each other; each then has a share of torch's threads.",
        minimum=1,
    ),
    Option("deterministic", (bool,), False, "Choose kernels by rule instead of by measuring."),
    Option(
        "verify",
        (bool,),
        False,
        "Debugging: run the general path beside each prepared run; InternalError where their results differ.",
    ),
    Option("poison", (bool,), False, "Debugging: fill planned memory with NaN before each prepared run."),
    Option(
        "progress",
        (bool,),
        True,
        "Show on a terminal and in notebooks what is traced or compiled for longer than a second.",
    ),
)
_RUNTIME = (
    "passes", "prepared", "max_prepared", "out_variants", "optimize_memory", "cleanup_activations",
    "manage_outputs", "deterministic", "poison", "verify", "inter_op_threads", "weight_memory", "plan_graphs",
)  # fmt: skip
_BY_NAME = {option.name: option for option in OPTIONS}


@dataclasses.dataclass(frozen=True)
class Options:
    """Checked options; attributes are the names in `OPTIONS`."""

    values: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def runtime(self) -> dict[str, Any]:
        """The options that the executable takes."""
        return {name: self.values[name] for name in _RUNTIME}

    def seconds_to_trace(self) -> float | None:
        """`trace_seconds`; None where time may not decide what runs."""
        seconds: float | None = self.values["trace_seconds"]
        return None if self.values["deterministic"] or self.values["fullgraph"] else seconds

    def __reduce__(self) -> Any:
        return Options, (dict(self.values),)


def parse_options(given: Mapping[str, Any]) -> Options:
    """Check names and values; fill in defaults.

    Values that other parts of the package define, contexts and accelerators, are checked by `staticrt.api.options`.

    Raises:
        OptionError: an unknown name, with the nearest known one, or a value the option does not take.
    """
    for name in given:
        if name not in _BY_NAME:
            near = difflib.get_close_matches(name, _BY_NAME, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"options are {', '.join(_BY_NAME)}"
            raise OptionError(f"unknown option {name!r}", fix=hint)
    values: dict[str, Any] = {}
    for option in OPTIONS:
        value = given.get(option.name, option.default)
        option.check(value)
        values[option.name] = value
    values["donate"] = _donated(values)
    _check_plan_graphs(values)
    return Options(values)


def _donated(values: Mapping[str, Any]) -> tuple[str, ...]:
    """`donate` as a tuple of names."""
    given = values["donate"]
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not isinstance(name, str) or not name:
            raise OptionError(
                f"option 'donate' takes names of arguments, got {name!r} ({type(name).__name__})",
                fix="donate=('x',)",
            )
    if names and values["graphs"] is not False:
        raise OptionError(
            "option 'donate' cannot be combined with graphs: a recorded run reads its inputs again",
            fix="leave out one of the two",
        )
    return names


def _check_plan_graphs(values: Mapping[str, Any]) -> None:
    """Raise OptionError where an option takes from plan graphs what they need."""
    off = [name for name in ("graphs", "donate", "manage_outputs", "verify") if values[name]]
    off += [] if values["prepared"] else ["prepared=False"]
    off += ['executor="reference"'] if values["executor"] == "reference" else []
    if values["plan_graphs"] and off:
        raise OptionError(
            f"option 'plan_graphs' cannot be combined with {off[0]}: it captures prepared programs, whose launches read copies of "
            "the inputs and write new results",
            fix="leave out one of the two",
        )
