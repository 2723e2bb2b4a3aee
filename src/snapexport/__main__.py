"""`python -m snapexport` is `snapexport`."""

import sys

from snapexport.start import main

if __name__ == "__main__":
    sys.exit(main())
