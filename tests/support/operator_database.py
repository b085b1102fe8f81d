"""torch's own database of operators and samples, which nobody here wrote.

For each sample torch looks through the whole stack for a `unittest.TestCase`, of which there is none here, and notes the
stack for CUDA's generators, which are seeded when CUDA is initialised. Both take longer than the operator.
"""

import random

import numpy
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

__all__ = ["op_db"]


def set_rng_seed(seed: int) -> None:
    """As torch's, of generators of the CPU."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


common_utils.extract_test_fn = core.extract_test_fn = lambda: None
common_utils.set_rng_seed = set_rng_seed
