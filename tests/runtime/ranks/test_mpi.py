"""The processes of mpiexec run a build's ranks, with mpi4py (`pip install mpi4py mpich`)."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.patience import PATIENCE, has_ended, until

pytest.importorskip("mpi4py", reason="needs snapexport[mpi] and an MPI, such as the package mpich")
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
MPIEXEC = shutil.which("mpiexec", path=_PATH)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec"),
]

CUT = Case("llama-cut", tensor_parallel=2)
STEPS = 20
# A process leaves its id as a file's name: mpiexec may join the lines that two processes print.
CODE = """
import json, os, pathlib, sys
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.patience import PATIENCE, has_ended, until
ids = pathlib.Path(sys.argv[4])
(ids / str(os.getpid())).touch()
llm = LLM(sys.argv[1], threads=1)  # only the first rank's call returns
(ids / "open").touch()
params = SamplingParams(max_tokens=int(sys.argv[3]), ignore_eos=True)
print(json.dumps(llm.generate(json.loads(sys.argv[2]), params)[0].token_ids))
"""


OVER_BATCH = Case("deepseek-v3-cut", tensor_parallel=2, batch=4, data_parallel_attention=True)


def started(
    ranks: int, ids: Path, prompt: list[int], steps: int, case: Case = CUT
) -> "subprocess.Popen[str]":
    assert MPIEXEC
    program = [sys.executable, "-c", CODE, str(cases.built(case).directory)]
    return subprocess.Popen(
        [MPIEXEC, "-n", str(ranks), *program, json.dumps([prompt]), str(steps), str(ids)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("case", [CUT, OVER_BATCH], ids=str)
def test_ranks_under_mpi_have_the_tokens_of_one_process(case: Case, tmp_path: Path) -> None:
    prompt = list(cases.prompt(77))
    out, err = started(2, tmp_path, prompt, STEPS, case).communicate(timeout=PATIENCE)
    params = SamplingParams(max_tokens=STEPS, ignore_eos=True)
    one = cases.built(Case(case.checkpoint)).directory
    alone = LLM(one, threads=1).generate([prompt], params)
    assert json.loads(out.splitlines()[-1]) == list(alone[0].token_ids), err


def test_a_killed_rank_ends_all_processes_of_mpi(tmp_path: Path) -> None:
    process = started(2, tmp_path, list(cases.prompt(77)), 900)
    opened = tmp_path / "open"
    until(lambda: opened.exists() or process.poll() is not None)
    one, other = (int(path.name) for path in tmp_path.iterdir() if path != opened)
    os.kill(one, signal.SIGKILL)
    process.wait(PATIENCE)
    assert process.returncode != 0
    until(lambda: has_ended(other))


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    process = started(3, tmp_path, [5, 6], 2)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "MPI started 3 processes, and the build has 2 ranks" in err
