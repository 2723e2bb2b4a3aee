"""A build with a chat template, for the commands that ask it."""

import shutil
from pathlib import Path

import pytest

from snapexport.contract.build_directory import Build
from tests.runtime.tokenizers_for_tests import byte_level

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}!{% endif %}{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture(scope="module")
def chatting(tiny_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build that takes 64 tokens, one a byte, with a chat template."""
    directory = tmp_path_factory.mktemp("chatting") / "chatting.build"
    shutil.copytree(tiny_build.directory, directory)
    byte_level().save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory
