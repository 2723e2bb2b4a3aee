"""`python -m snapexport` is `snapexport`."""

import sys

from snapexport.commands.app import main

if __name__ == "__main__":
    sys.exit(main())
