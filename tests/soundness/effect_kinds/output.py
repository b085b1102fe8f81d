"""Effects that print, log or warn."""

import functools
import io
import logging
import warnings

from torch import nn

from tests.soundness.effect_kinds.registry import counted


@counted
def printed(folder):
    out = io.StringIO()

    def f(x):
        print("step", file=out)
        return x + 1

    return f, out.getvalue


@counted
def logged(folder):
    out = io.StringIO()
    log = logging.getLogger(f"effects.{folder.name}")
    log.addHandler(logging.StreamHandler(out))
    log.propagate = False

    def f(x):
        log.warning("step %s", x.shape[0])
        return x + 1

    return f, out.getvalue


@counted
def logged_by_adapter(folder):
    records = []
    log = logging.getLogger(f"effects.adapter.{folder.name}")
    log.addHandler(
        type("Keep", (logging.Handler,), {"emit": lambda self, record: records.append(record.msg)})()
    )
    adapter = logging.LoggerAdapter(log, {})

    def f(x):
        adapter.error("step")
        return x + 1

    return f, lambda: len(records)


@counted
def warned(folder):
    shown = []

    def f(x):
        warnings.warn("step", stacklevel=1)
        return x + 1

    def call(x):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            result = call.inner(x)
        shown.extend(str(each.message) for each in found if "step" in str(each.message))
        return result

    call.inner = f
    return call, lambda: shown


@counted
def once_by_a_cache(folder):
    out = io.StringIO()
    log = logging.getLogger(f"effects.once.{folder.name}")
    log.addHandler(logging.StreamHandler(out))
    log.propagate = False

    @functools.lru_cache
    def warn_once(text):
        log.warning(text)

    def f(x):
        warn_once("once")
        return x + 1

    return f, out.getvalue


@counted
def printed_by_a_partial(folder):
    out = io.StringIO()

    def f(x):
        functools.partial(print, "step", file=out)()
        return x + 1

    return f, out.getvalue


@counted
def printed_by_a_partial_outside(folder):
    out = io.StringIO()
    show = functools.partial(functools.partial(print, "step"), file=out)

    def f(x):
        show(x.shape[0])
        return x + 1

    return f, out.getvalue


@counted
def printed_by_a_partial_of_the_model(folder):
    out = io.StringIO()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.show = functools.partial(print, "step", file=out)

        def forward(self, x):
            self.show()
            return x + 1

    return Model(), out.getvalue
