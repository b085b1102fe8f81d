"""torch's own database of operators and samples, which nobody here wrote.

For each sample torch looks through the whole stack for a `unittest.TestCase`, of which there is none here. That takes longer
than the operator.
"""

from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

common_utils.extract_test_fn = core.extract_test_fn = lambda: None

__all__ = ["op_db"]
