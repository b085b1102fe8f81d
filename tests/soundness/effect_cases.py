"""Functions that do something besides computing, each with what tells how often it happened."""

import asyncio
import atexit
import code
import contextlib
import functools
import io
import json
import logging
import os
import pickle
import queue
import shelve
import subprocess
import tempfile
import threading
import warnings

from torch import nn


def counted(effect):
    """A case: `effect(folder)` gives a function of a tensor and one that tells what has happened so far."""
    CASES[effect.__name__] = effect
    return effect


CASES = {}


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
def appended_by_pathlib(folder):
    path = folder / "log"
    path.write_text("")

    def f(x):
        path.write_text(path.read_text() + "x")
        return x + 1

    return f, path.read_text


@counted
def opened_through_map(folder):
    path = folder / "log"

    def f(x):
        for file in map(functools.partial(open, mode="a"), [path]):
            file.write("x")
            file.close()
        return x + 1

    return f, lambda: path.read_text()


@counted
def file_created(folder):
    def f(x):
        handle, _name = tempfile.mkstemp(dir=folder)
        os.close(handle)
        return x + 1

    return f, lambda: len(list(folder.iterdir()))


@counted
def json_dumped(folder):
    def f(x):
        with open(folder / "log", "a") as file:
            json.dump({"n": 1}, file)
        return x + 1

    return f, lambda: (folder / "log").read_text()


@counted
def pickled_to_file(folder):
    file = io.BytesIO()

    def f(x):
        pickle.dump(1, file)
        return x + 1

    return f, file.getvalue


@counted
def process_run(folder):
    def f(x):
        subprocess.run(["sh", "-c", f"echo x >> {folder}/log"], check=True)
        return x + 1

    return f, lambda: (folder / "log").read_text()


@counted
def system_called(folder):
    def f(x):
        os.system(f"echo x >> {folder}/log")
        return x + 1

    return f, lambda: (folder / "log").read_text()


@counted
def queue_filled(folder):
    items = queue.Queue()

    def f(x):
        items.put(1)
        return x + 1

    return f, items.qsize


@counted
def simple_queue_filled(folder):
    items = queue.SimpleQueue()

    def f(x):
        items.put_nowait(1)
        return x + 1

    return f, items.qsize


@counted
def thread_started(folder):
    seen = []

    def f(x):
        thread = threading.Thread(target=lambda: seen.append(1))
        thread.start()
        thread.join()
        return x + 1

    return f, lambda: len(seen)


@counted
def event_set(folder):
    event = threading.Event()
    seen = []

    def call(x):
        event.clear()
        result = call.inner(x)
        seen.append(event.is_set())
        return result

    def f(x):
        event.set()
        return x + 1

    call.inner = f
    return call, lambda: seen


@counted
def coroutine_run(folder):
    out = io.StringIO()

    async def work():
        await asyncio.sleep(0)
        out.write("x")

    def f(x):
        asyncio.run(work())
        return x + 1

    return f, out.getvalue


@counted
def code_interpreted(folder):
    def f(x):
        code.InteractiveInterpreter({"path": str(folder / "log")}).runsource(
            "open(path, 'a').write('x') and None"
        )
        return x + 1

    return f, lambda: (folder / "log").read_text()


@counted
def code_executed(folder):
    def f(x):
        exec(f"open({str(folder / 'log')!r}, 'a').write('x')")
        return x + 1

    return f, lambda: (folder / "log").read_text()


@counted
def shelf_written(folder):
    def f(x):
        with shelve.open(str(folder / "shelf")) as shelf:
            shelf[str(len(shelf))] = 1
        return x + 1

    def count():
        with shelve.open(str(folder / "shelf")) as shelf:
            return len(shelf)

    return f, count


@counted
def environment_set(folder):
    name = f"EFFECTS_{folder.name}".replace("-", "_")

    def f(x):
        os.environ[name] = os.environ.get(name, "") + "x"
        return x + 1

    return f, lambda: os.environ.get(name)


@counted
def exit_registered(folder):
    calls = []

    def at_exit():
        calls.append(1)

    def f(x):
        atexit.unregister(at_exit)
        calls.append(1)
        return x + 1

    return f, lambda: len(calls)


@counted
def swallowed_by_except(folder):
    path = folder / "log"

    def f(x):
        try:
            with open(path, "a") as file:
                file.write("x")
        except BaseException:
            with open(path, "a") as file:
                file.write("!")
        return x + 1

    return f, path.read_text


@counted
def swallowed_by_context(folder):
    path = folder / "log"

    def f(x):
        with contextlib.suppress(BaseException):
            os.write(os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY), b"x")
        with contextlib.suppress(BaseException):
            path.write_text(path.read_text() + "y")
        return x + 1

    return f, path.read_text


@counted
def raised_after_effect(folder):
    path = folder / "log"

    def f(x):
        with open(path, "a") as file:
            file.write("x")
        raise KeyError("after")

    def call(x):
        with contextlib.suppress(KeyError):
            call.inner(x)
        return x

    call.inner = f
    return call, path.read_text


@counted
def in_a_finally(folder):
    path = folder / "log"

    def f(x):
        try:
            return x + 1
        finally:
            with open(path, "a") as file:
                file.write("x")

    return f, path.read_text


@counted
def in_a_callback(folder):
    path = folder / "log"

    def f(x):
        with contextlib.ExitStack() as stack:
            stack.callback(path.write_text, (path.read_text() if path.exists() else "") + "x")
            return x + 1

    return f, path.read_text


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


@counted
def counted_in_thread_local(folder):
    local = threading.local()
    local.count = 0

    def f(x):
        local.count += 1
        return x * local.count

    return f, lambda: local.count


@counted
def counted_in_a_slot_that_comes_and_goes(folder):
    class Slots:
        __slots__ = ("count", "odd")

    held, seen = Slots(), []
    held.count = 0

    def f(x):
        held.count += 1
        if hasattr(held, "odd"):
            del held.odd
        else:
            held.odd = True
        seen.append((held.count, hasattr(held, "odd")))
        return x * held.count

    return f, lambda: seen


@counted
def counted_for_evaluated_code(folder):
    names = {"count": 0}

    def f(x):
        names["count"] += 1
        return x * eval("count", names)

    return f, lambda: names["count"]
