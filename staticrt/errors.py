"""Errors a user can meet. Imports nothing, so that every folder may import it.

Each message says what happened, where (`at`) and what to do (`fix`).
"""


class StaticRuntimeError(RuntimeError):
    """Base of all errors raised on purpose by staticrt.

    Args:
        message: what happened, with expected and actual values and units.
        at: where: a graph node, a model line, an argument.
        fix: what the user can do about it.
    """

    def __init__(self, message: str, *, at: object = None, fix: str | None = None) -> None:
        text = message
        if at is not None:
            text += f"\n  at:  {at}"
        if fix is not None:
            text += f"\n  fix: {fix}"
        super().__init__(text)
        self.message = message
        self.at = at
        self.fix = fix


class InputError(StaticRuntimeError, TypeError):
    """A call does not fit the compiled function: arguments, shapes, dtypes or devices."""


class NumberError(InputError, ArithmeticError):
    """Arithmetic on the sizes or numbers of a call failed: a division by zero, more than 64 bits."""


class OptionError(StaticRuntimeError, ValueError):
    """An unknown option or a value it does not take."""


class TraceError(StaticRuntimeError):
    """A module or a training step could not be traced into a graph."""


class CaptureError(StaticRuntimeError):
    """A run could not be captured into a graph that replays it."""


class ReplayError(CaptureError):
    """A captured graph does not hold for the values of a call: a result has another size than at the capture."""


class PassError(StaticRuntimeError):
    """A pass was given a graph it cannot take, or left one it must not leave."""


class LoweringError(StaticRuntimeError):
    """A graph could not be turned into a Program."""


class ArchiveError(StaticRuntimeError):
    """A saved model cannot be written or read: the file is damaged, of another version, or needs what is not here."""


class PlanError(StaticRuntimeError, ValueError):
    """A memory plan was asked for with specs that make none."""


class AcceleratorUnavailable(StaticRuntimeError):
    """An accelerator was asked for by name and cannot be used here; the message says what was found."""


class GradError(StaticRuntimeError):
    """A call needs gradients that this compiled function cannot give."""


class OutOfMemoryError(StaticRuntimeError):
    """Memory could not be had; the message says how much was asked for and what holds the rest."""


class InvalidPointerError(StaticRuntimeError, ValueError):
    """A pointer that an allocator did not give, or that was freed already."""


class AllocatorError(StaticRuntimeError, ValueError):
    """The allocator was used wrongly: an unknown pool, a pool routed twice, a limit that is none."""


class DeviceError(StaticRuntimeError):
    """A device failed, cannot do what was asked, or is not there."""


class OnnxError(StaticRuntimeError, ValueError):
    """An ONNX model that is damaged or invalid, or holds what staticrt does not support; or a failed export."""


class InternalError(StaticRuntimeError):
    """A broken invariant of staticrt itself: please report it."""
