"""Runs lm_eval's own command line with the model `snapexport` added; no flag differs.

Errors of the user are printed without a traceback.
"""

import sys

from snapexport.errors import UserError
from tools.studies.lm_eval import register

BAD_INPUT = 2


def main() -> int:
    """Run the harness on the arguments of this process; the exit status."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except UserError as error:
        print(f"error: {error.message}\n\nhint: {error.hint}", file=sys.stderr)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
