"""`python -m staticrt`: the command line."""

import sys

from staticrt.cli import main

sys.exit(main())
