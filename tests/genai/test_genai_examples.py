"""The examples of examples/genai/ answer a prompt of many blocks."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from snapexport.vault import VaultPrompt, make_prompt
from tests.genai.conftest import PYTHON
from tools.house import ROOT

EXAMPLES = ROOT / "examples" / "genai"
SECONDS = 300


@pytest.fixture(scope="module")
def prompts() -> list[VaultPrompt]:
    return [make_prompt(seed, 700) for seed in (2, 3)]


def run(*command: object, given: str = "", **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)],
        input=given,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chat_takes_several_turns(vault: Path, prompts: list[VaultPrompt], tmp_path: Path) -> None:
    """The checkpoint has no template: here a turn's text is the message."""
    folder = tmp_path / "vault"
    shutil.copytree(vault, folder)
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    found = run(PYTHON, EXAMPLES / "chat.py", folder, *(one.text for one in prompts))
    assert found.splitlines() == [one.answer for one in prompts]


def test_c_program_answers(vault: Path, prompts: list[VaultPrompt], tmp_path: Path) -> None:
    if not (compiler := shutil.which("gcc")):
        pytest.skip("gcc is not here")
    asked = "import onnxruntime, onnxruntime_genai as g; print(onnxruntime.__file__, g.__file__)"
    runtime, library = (Path(file).parent for file in run(PYTHON, "-c", asked).split())
    program = tmp_path / "answer"
    file = library / "libonnxruntime-genai.so"
    run(compiler, "-Wall", "-Wextra", "-Werror", EXAMPLES / "answer.c", "-o", program, file)
    (onnxruntime,) = (runtime / "capi").glob("libonnxruntime.so.*")
    where = {"LD_LIBRARY_PATH": str(library), "ORT_LIB_PATH": str(onnxruntime)}
    found = run(program, vault, given=prompts[0].text, **where)
    assert found.strip() == prompts[0].answer.strip()
