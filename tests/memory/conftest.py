"""The build of the bundled checkpoint that is served, for each backend of the CPU."""

from tests.serving.conftest import build as build
