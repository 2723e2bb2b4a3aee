"""`snapexport serve --triton` by OpenAI's client."""

from tests.serving.served_api import *  # noqa: F403
