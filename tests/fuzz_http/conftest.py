"""The build that is served to hostile clients."""

from tests.serving.conftest import build as build
