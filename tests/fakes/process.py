"""Runs snapexport over the fakes: `python -m tests.fakes.process PLANTED ARGUMENT...`."""

import json
import sys

import pytest

from snapexport.__main__ import main
from tests.fakes import tensorrt
from tests.fakes.plans import install

if __name__ == "__main__":
    install(pytest.MonkeyPatch())
    tensorrt.planted.update(json.loads(sys.argv.pop(1)))
    sys.exit(main())
