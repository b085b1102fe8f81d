"""Effects on objects of this process: queues, threads, counters."""

import asyncio
import atexit
import io
import queue
import threading

from tests.soundness.effect_kinds.registry import counted


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
