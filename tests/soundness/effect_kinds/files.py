"""Effects on files, other processes and the environment."""

import code
import contextlib
import functools
import io
import json
import os
import pickle
import shelve
import subprocess
import tempfile

from tests.soundness.effect_kinds.registry import counted


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
