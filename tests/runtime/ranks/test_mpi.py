"""The processes of mpiexec run a build's ranks, with mpi4py (`pip install mpi4py mpich`)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.oracle import cases
from tests.oracle.cases import Case

pytest.importorskip("mpi4py", reason="needs snapexport[mpi] and an MPI, such as the package mpich")
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
MPIEXEC = shutil.which("mpiexec", path=_PATH)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec"),
]

CUT = Case("llama-cut", tensor_parallel=2)
STEPS = 20
CODE = """
import json, os, sys, time
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
print(os.getpid(), flush=True)
llm = LLM(sys.argv[1], threads=1)
print("open", flush=True)
params = SamplingParams(max_tokens=int(sys.argv[3]), ignore_eos=True)
print(json.dumps(llm.generate(json.loads(sys.argv[2]), params)[0].token_ids))
"""


OVER_BATCH = Case("deepseek-v3-cut", tensor_parallel=2, batch=4, data_parallel_attention=True)


def started(ranks: int, prompt: list[int], steps: int, case: Case = CUT) -> "subprocess.Popen[str]":
    assert MPIEXEC
    program = [sys.executable, "-c", CODE, str(cases.built(case).directory)]
    return subprocess.Popen(
        [MPIEXEC, "-n", str(ranks), *program, json.dumps([prompt]), str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("case", [CUT, OVER_BATCH], ids=str)
def test_ranks_under_mpi_have_the_tokens_of_one_process(case: Case) -> None:
    prompt = list(cases.prompt(77))
    out, err = started(2, prompt, STEPS, case).communicate(timeout=100)
    params = SamplingParams(max_tokens=STEPS, ignore_eos=True)
    one = cases.built(Case(case.checkpoint)).directory
    alone = LLM(one, threads=1).generate([prompt], params)
    assert json.loads(out.splitlines()[-1]) == list(alone[0].token_ids), err


def test_a_killed_rank_ends_all_processes_of_mpi() -> None:
    process = started(2, list(cases.prompt(77)), 900)
    assert process.stdout
    one, other = (int(process.stdout.readline()) for _ in range(2))
    assert process.stdout.readline() == "open\n"
    os.kill(one, signal.SIGKILL)
    process.wait(20)
    assert process.returncode != 0
    end = time.monotonic() + 10
    while Path(f"/proc/{other}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{other}").exists()


def test_another_number_of_processes_is_refused() -> None:
    process = started(3, [5, 6], 2)
    _, err = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "MPI started 3 processes, and the build has 2 ranks" in err
