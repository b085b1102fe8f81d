"""Archives of small models, for several test files."""

import collections
import io

from torch import nn

import staticrt

Point = collections.namedtuple("Point", "x y")


def archive_bytes(model, example_inputs, *calls, exported_program=False, **options):
    """The archive of a compiled model after these calls."""
    compiled = staticrt.compile(model)
    for args in calls:
        compiled(*args)
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, example_inputs, exported_program=exported_program, **options)
    return buffer.getvalue()


def reload(model, example_inputs, *calls, **options):
    return staticrt.load(archive_bytes(model, example_inputs, *calls), **options)


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
