"""Makes what is mutated: tiny checkpoints, a build, tokenizers and templates.

In a process of its own (`python -m tests.fuzz.material DIR`): the one that forks starts no threads.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from snapexport.contract.manifest import DIGEST, MANIFEST

FAMILIES = ("llama", "gemma3", "qwen2-sliding", "mistral-sliding")
FAMILIES += ("qwen3-moe", "deepseek-v2-groups", "deepseek-v3", "gpt-oss")
PROMPTS = ([1, 2, 3] * 5, [5, 9, 31, 7] * 12)
"""One that is kept whole, and one that is compressed."""
TOKENS = 6
BUILD, EXPECTED = "llama.build", "expected.json"
FLAGS = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24, "batch": 2}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
    "<<{{ message['content'] | trim }}>>\n{% elif message['role'] in ['user', 'assistant'] %}"
    "[{{ message.role }}] {{ message['content'] }}{{ eos_token if loop.last else '' }}\n"
    "{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def ensure(work: Path) -> None:
    """Make what is missing."""
    if not (work / EXPECTED).is_file():
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "tests.fuzz.material", str(work)], check=True)


def make(work: Path) -> None:
    from snapexport.builder import build
    from tests.exporter import gguf_files
    from tests.oracle import checkpoints
    from tests.runtime import tokenizers_for_tests

    for name in FAMILIES:
        if not (work / name).is_dir():
            checkpoints.make(name, work / name)
    gguf_files.make("llama", work)
    for name in ("byte_level", "byte_fallback", "words"):
        getattr(tokenizers_for_tests, name)().save(str(work / f"{name}.json"))
    build(work / "llama", work / BUILD, overwrite=True, baseline=True, **FLAGS)
    (work / EXPECTED).write_text(json.dumps(tokens(work / BUILD)))


def tokens(build: Path) -> list[list[int]]:
    """What the build says, greedily, past any end token."""
    from snapexport.runtime.requests.llm import LLM
    from snapexport.runtime.requests.request import SamplingParams

    llm = LLM(build, threads=1)
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    answers = llm.generate([list(prompt) for prompt in PROMPTS], params)
    return [list(map(int, answer.token_ids)) for answer in answers]


def link_tree(source: Path, target: Path) -> None:
    """A directory of hard links, to be replaced one by one."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
        else:
            place.hardlink_to(path)


def replace(path: Path, content: bytes) -> None:
    """Write a new file in the place of a link."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def replace_manifest(directory: Path, raw: bytes) -> None:
    """Write another manifest, and its digest anew."""
    replace(directory / MANIFEST, raw)
    digest = f"{hashlib.sha256(raw).hexdigest()}  {MANIFEST}\n"
    replace(directory / DIGEST, digest.encode())


if __name__ == "__main__":
    make(Path(sys.argv[1]))
