"""`python -m staticrt`: the command line."""

import sys

from staticrt.tools.cli.main import main

sys.exit(main())
