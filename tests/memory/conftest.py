"""Simulated devices that are checked when a test ends: tables valid, no race, and nothing left behind."""

import pytest

import staticrt.memory

MIB = 1 << 20


@pytest.fixture
def device():
    """`device(total_mib=…, **options)` makes a simulated device."""
    made = []

    def make(total_mib=100, **options):
        sim = staticrt.memory.simulated(total_mib * MIB, **options)
        made.append(sim)
        return sim

    yield make
    for sim in made:
        sim.check()


@pytest.fixture
def sim(device):
    return device()
