"""`snapexport dynamo up`, workers of both roles, chats, and the drain on a signal."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai import OpenAI

from snapexport import LLM, SamplingParams
from snapexport.serving.dynamo.up import HOST
from snapexport.serving.process import free_port
from snapexport.vault import make_prompt
from tests.serving.dynamo.processes import NAME, Cluster, ids_of
from tests.serving.process import SECONDS

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
STREAM_TOKENS = 1200
DECODE = "decode-0", "decode-1"


@contextmanager
def up(build: Path, *flags: str) -> Iterator["tuple[subprocess.Popen[str], str]"]:
    """The command itself, and what it printed up to the curl line."""
    port = free_port(HOST)
    command = [sys.executable, "-m", "snapexport", "dynamo", "up", str(build), f"--port={port}"]
    process = subprocess.Popen(
        [*command, "--threads=1", f"--name={NAME}", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stderr
    lines = []
    try:
        while not (lines and lines[-1].startswith("curl ")):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            lines.append(line)
        yield process, "".join(lines)
    finally:
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    of = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in of.split()]


def url_in(printed: str) -> str:
    found = re.search(r"OpenAI +(\S+)", printed)
    assert found
    return found[1]


def completed(url: str, prompt: list[int]) -> str:
    client = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=SECONDS)
    answer = client.completions.create(model=NAME, prompt=prompt, max_tokens=12, temperature=0)
    return answer.choices[0].text


def test_up_answers_and_ends_all_its_processes_on_ctrl_c(build: Path, llm: LLM) -> None:
    prompt = ids_of(llm, 1)
    (expected,) = llm.generate([prompt], SamplingParams(max_tokens=12))
    with up(build) as (process, printed):
        assert completed(url_in(printed), prompt) == expected.text
        members = children(process.pid)
        assert len(members) == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 128 + signal.SIGINT
        assert not [pid for pid in members if Path(f"/proc/{pid}").exists()]


def test_up_says_which_worker_has_ended(build: Path) -> None:
    with up(build, "--prefill=0") as (process, _):
        _, worker = children(process.pid)
        os.kill(worker, signal.SIGKILL)
        _, error = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert "error: both-0 ended with status -9" in error and "hint: see" in error


def test_one_worker_of_both_roles_answers_as_one_process(build: Path, llm: LLM) -> None:
    prompts = [ids_of(llm, seed) for seed in range(2, 6)]
    expected = [one.text for one in llm.generate(prompts, SamplingParams(max_tokens=12))]
    with up(build, "--prefill=0") as (_, printed):
        assert [completed(url_in(printed), prompt) for prompt in prompts] == expected


def test_chat_goes_through_the_builds_template(alone: Cluster, build: Path, tmp_path: Path) -> None:
    chatting = tmp_path / "chat.build"
    shutil.copytree(build, chatting)
    (chatting / "chat_template.jinja").write_text(TEMPLATE)
    messages = [{"role": "user", "content": make_prompt(8, 500).text}]
    reference = LLM(chatting, threads=1)
    (expected,) = reference.chat(messages, SamplingParams(max_tokens=12))
    alone.serve(chatting, prefill=1, decode=1)
    answer = alone.client.chat.completions.create(
        model=NAME,
        messages=messages,  # type: ignore[arg-type]
        max_tokens=12,
        temperature=0,
    )
    assert answer.choices[0].message.content == expected.text
    assert answer.usage and answer.usage.prompt_tokens == len(expected.prompt_token_ids)


def test_worker_drains_on_sigterm(alone: Cluster, build: Path, llm: LLM) -> None:
    """A running answer finishes, and the worker then ends by itself."""
    alone.serve(build, prefill=1, decode=2)
    prompt = ids_of(llm, 9)
    how = SamplingParams(max_tokens=STREAM_TOKENS, ignore_eos=True)
    (expected,) = llm.generate([prompt], how)

    async def run() -> tuple[str, str]:
        stream = await alone.async_client.completions.create(
            model=NAME,
            prompt=prompt,
            max_tokens=STREAM_TOKENS,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        busy, parts = "", []
        async for chunk in stream:
            if not busy:
                (busy,) = (one for one in DECODE if alone.metric(one, "slots_used"))
                alone.members[busy].process.send_signal(signal.SIGTERM)
            parts += [choice.text for choice in chunk.choices]
        return busy, "".join(parts)

    busy, text = asyncio.run(run())
    assert text == expected.text
    assert alone.members[busy].process.wait(SECONDS) == 0


def test_prefill_worker_waits_for_its_rows_on_sigterm(
    alone: Cluster, build: Path, llm: LLM
) -> None:
    lease = 8
    alone.worker(build, "prefill", "prefill-0", lease)
    alone.wait_for_workers()
    prompt = ids_of(llm, 3)
    request = {"token_ids": prompt, "stop_conditions": {"max_tokens": 5}}
    (chunk,) = alone.direct("prefill", request)["chunks"]
    assert chunk["disaggregated_params"]["prompt_length"] == len(prompt)
    process = alone.members["prefill-0"].process
    assert alone.metric("prefill-0", "leases") == 1
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    assert time.monotonic() - began > lease / 2
