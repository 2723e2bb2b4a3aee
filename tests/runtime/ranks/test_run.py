"""LLM starts the ranks of a build, and a rank that dies ends the generation."""

import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.runtime.engine.backend import DeviceError
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.ranks import sockets
from snapexport.runtime.ranks.executor import RankExecutor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.patience import PATIENCE, has_ended, until

pytestmark = pytest.mark.slow

RANKS = 2
CASE = Case("llama-cut", tensor_parallel=RANKS)
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)
PROMPTS = [list(cases.prompt(length)) for length in (5, 40, 77, 61)]


@pytest.fixture
def llm() -> Iterator[LLM]:
    llm = LLM(cases.built(CASE).directory, threads=1)
    yield llm
    llm.executor.close()


def ranks_of(process: int) -> list[int]:
    """The processes of the other ranks."""
    told = subprocess.run(
        ["ps", "--ppid", str(process), "-o", "pid=,args="], capture_output=True, text=True
    ).stdout
    return [int(line.split()[0]) for line in told.splitlines() if "ranks.processes" in line]


def test_requests_side_by_side_have_the_tokens_of_one_process(llm: LLM) -> None:
    alone = LLM(cases.built(Case("llama-cut")).directory, threads=1).generate(PROMPTS, PARAMS)
    assert [one.token_ids for one in llm.generate(PROMPTS, PARAMS)] == [
        one.token_ids for one in alone
    ]


def test_a_rank_that_dies_ends_the_generation_with_an_error(llm: LLM) -> None:
    llm.submit(PROMPTS[1], PARAMS)
    llm.step()
    (other,) = ranks_of(os.getpid())
    os.kill(other, signal.SIGKILL)
    end, deltas = time.monotonic() + PATIENCE, []
    while llm.busy and time.monotonic() < end:
        deltas += llm.step()
    assert isinstance(deltas[-1].exception, DeviceError)
    assert "rank 1 ended" in str(deltas[-1].exception)
    with pytest.raises(DeviceError, match="closed"):
        llm.generate([PROMPTS[0]], PARAMS)


def test_a_rank_that_hangs_ends_the_generation_with_an_error(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.submit(PROMPTS[1], PARAMS)
    llm.step()
    (other,) = ranks_of(os.getpid())
    os.kill(other, signal.SIGSTOP)
    monkeypatch.setattr(sockets, "SILENT_SECONDS", 0.5)
    deltas = []
    while llm.busy:
        deltas += llm.step()
    assert "rank 1 has sent nothing for 0.5 seconds" in str(deltas[-1].exception)
    assert ranks_of(os.getpid()) == []


def test_closing_the_executor_ends_the_other_ranks(llm: LLM) -> None:
    assert len(ranks_of(os.getpid())) == RANKS - 1
    llm.executor.close()
    assert ranks_of(os.getpid()) == []


def test_the_other_ranks_end_with_a_killed_first_rank() -> None:
    code = (
        "import sys, time\nfrom snapexport.runtime.requests.llm import LLM\n"
        "llm = LLM(sys.argv[1], threads=1)\nprint('open', flush=True)\ntime.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(cases.built(CASE).directory)], stdout=subprocess.PIPE
    )
    assert process.stdout and process.stdout.readline() == b"open\n"
    (other,) = ranks_of(process.pid)
    process.kill()
    process.wait()
    until(lambda: has_ended(other))


def test_a_rank_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    subprocess.run(["cp", "-r", cases.built(CASE).directory, copied], check=True)
    weight = copied / "rank1/weights/model.norm.weight.safetensors"
    made = Build.open(copied)
    weight.unlink()
    with pytest.raises(UserError, match=r"rank 1: UserError: .*model\.norm\.weight.* is missing"):
        open_executor(made, threads=1)


@pytest.mark.parametrize(
    "options",
    [{"parked_rows": 2}, {"role": "prefill"}, {"backend": "onnxruntime-cuda"}, {"baseline": True}],
    ids=str,
)
def test_what_ranks_cannot_do_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="not supported for a build with --tensor-parallel 2"):
        LLM(cases.built(CASE).directory, **options)  # type: ignore[arg-type]


OF_ONE_RANK = {"decode_buffers", "prefill_prompt", "require_open", "role", "rows", "taker"}
"""They change nothing, or only make calls that are followed."""


def test_every_call_of_an_executor_is_followed_by_all_ranks() -> None:
    public = {name for name, _ in inspect.getmembers(Executor) if not name.startswith("_")}
    own = {name for name in vars(RankExecutor) if name[0] != "_"}
    assert public - OF_ONE_RANK == own
