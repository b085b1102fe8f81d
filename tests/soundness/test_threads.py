"""A trace is private to its thread: what other threads do meanwhile, they do as if nobody traced."""

import pytest

from tests.support.beside_traces import CASES, MEANWHILE, beside_traces

# Dynamo and AOTAutograd, which training goes through, set flags of the process by themselves; these see none of them.
BESIDE_TRAINING = {"answers_of_torch", "convolution", "gradients", "loaded_model"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_other_threads_see_no_trace(name):
    meanwhile = tuple(each for each in MEANWHILE if each != "trains" or name in BESIDE_TRAINING)
    runs, differences = beside_traces(CASES[name](), traces=1, meanwhile=meanwhile)
    assert runs > 0
    assert not differences, f"{len(differences)} of {runs}: {differences[0]}"
