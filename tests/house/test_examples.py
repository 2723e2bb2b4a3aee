"""The scripts in examples/ run on the bundled checkpoint, and their output is right."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapexport.vault import CHECKPOINT, make_prompt
from tests.builds import build
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMPT = make_prompt(3, 256)
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of the bundled checkpoint, with a chat template that adds nothing."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(CHECKPOINT, folder / "checkpoint")
    (folder / "checkpoint" / "chat_template.jinja").write_text(TEMPLATE)
    return _build(folder / "vault.build", folder / "checkpoint")


def _build(out: Path, model: Path = CHECKPOINT, **options: object) -> Path:
    build(model, out, L_max=264, kv_budget=128, batch=2, **options)
    return out


def run(example: str, *arguments: object) -> str:
    """Standard output of an example."""
    command = [sys.executable, EXAMPLES / example, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_script_has_a_test() -> None:
    here = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in here] == []


def test_offline_generate_answers_each_prompt(vault: Path) -> None:
    out = run("offline_generate.py", vault, PROMPT.text, PROMPT.text[:100])
    first, second = out.splitlines()
    assert first.startswith("256 tokens") and PROMPT.answer in first
    assert " -> " in second


def test_stream_example_prints_the_answer(vault: Path) -> None:
    assert run("stream.py", vault, PROMPT.text) == PROMPT.answer + "\n"


def test_score_continuations_prefers_the_right_value(vault: Path) -> None:
    wrong = " ".join([*PROMPT.answer.split()[:-1], PROMPT.answer.split()[0]])
    out = run("score_continuations.py", vault, PROMPT.text, PROMPT.answer, f" {wrong}")
    right, other, later = out.splitlines()
    assert right.endswith("(greedy)")
    assert float(right.split()[0]) > float(other.split()[0])
    assert later.startswith("after")


def test_continuous_batching_cancels_one_and_finishes_the_others(vault: Path) -> None:
    out = run("continuous_batching.py", vault, *(make_prompt(seed, 256).text for seed in range(4)))
    assert out.count("(cancelled)") == 1
    assert out.count("(length)") == 3
    assert out.endswith("0 batch slots in use\n")


def test_polygraphy_diff_finds_two_targets_equal(vault: Path, tmp_path: Path) -> None:
    portable = _build(tmp_path / "portable.build", target="portable")
    assert "the graphs agree" in run("polygraphy_diff.py", vault, portable)


@pytest.fixture
def served(vault: Path) -> Iterator[str]:
    """Address of a server of the build."""
    for package in ("starlette", "uvicorn", "openai"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'snapexport[serve]' openai")
    command = [sys.executable, "-m", "snapexport", "serve", str(vault), "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield json.loads(server.stdout.readline())["openai"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=PATIENCE) == 0
    finally:
        server.kill()
        server.wait()


def test_chat_example_streams_the_answer(served: str) -> None:
    assert PROMPT.answer.strip() in run("chat.py", served, PROMPT.text)
