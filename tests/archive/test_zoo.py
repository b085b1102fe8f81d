"""Every network of the zoo runs from its archive in a process that cannot import its code."""

import gc

import pytest
import torch

import staticrt
from staticrt.models import zoo


def close(got, expected, entry):
    if isinstance(expected, (tuple, list)):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            close(one, other, entry)
        return
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(got, expected, rtol=entry.rtol, atol=entry.atol * scale)


@pytest.mark.parametrize("entry", zoo.ENTRIES, ids=lambda entry: entry.name)
def test_network_runs_without_its_code(entry, fresh_process, tmp_path):
    module = entry.build()
    path = tmp_path / "model.pt2"
    # torch.export takes longer than all the rest; test_archive.py opens archives with it.
    with torch.no_grad():
        staticrt.save(
            staticrt.compile(module),
            path,
            entry.inputs(variant=entry.trace_variant),
            exported_program=False,
        )
        # Other sizes than those traced, and the traced ones.
        variants = [*entry.variants][:2]
        calls = [(entry.inputs(seed=3, variant=name), {}) for name in variants]
        expected = [module(*args) for args, _kwargs in calls]
    for results, wanted in zip(fresh_process.run(path, calls), expected, strict=True):
        for result in results:
            close(result, wanted, entry)
    path.unlink()
    gc.collect()
