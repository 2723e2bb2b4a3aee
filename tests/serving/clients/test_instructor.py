"""instructor: its default mode, by tools, and that by a JSON schema."""

import instructor
import openai
import pytest

from tests.serving.clients.answers import QUESTION, City
from tests.serving.clients.conftest import MODEL_NAME


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_response_model_is_made(mode: str) -> None:
    client = instructor.from_openai(openai.OpenAI(timeout=300), mode=instructor.Mode[mode])
    city = client.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": QUESTION}],
        response_model=City,
        max_retries=0,
        max_tokens=200,
    )
    assert isinstance(city, City)
