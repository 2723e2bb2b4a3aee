"""`python -m snapexport.eval.harness`: lm_eval's command line, with our model in it."""

import sys

from snapexport.eval.harness.cli import main

if __name__ == "__main__":
    sys.exit(main())
