"""OpenVINO on the CPU gives what transformers gives, on unchanged builds of the portable target."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from snapexport.errors import UserError
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.oracle import cases
from tests.oracle.cases import Case, build_of
from tests.oracle.compare import assert_logits
from tests.runtime.requests.traffic import assert_neighbours_change_nothing

pytest.importorskip("openvino")

STEPS = 20
"""They wrap the ring once."""
LENGTHS = (1, 33, 90)


def executor_of(case: Case, **options: Any) -> Executor:
    executor = open_executor(build_of(case), backend="openvino", threads=1, **options)
    assert isinstance(executor, Executor)
    return executor


ENDED_IN_ORDER = """
import gc, signal, sys
from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.open_executor import open_executor
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
opened = [open_executor(Build.open(sys.argv[1]), backend="openvino", threads=1) for _ in range(2)]
while opened:
    opened.pop(0).close()
    gc.collect()
signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_is_handled_after_executors_that_ended_in_the_order_they_began() -> None:
    """OpenVINO's plugin gives its thread a stack for signal handlers."""
    built = build_of(Case(target="portable")).directory
    command = [sys.executable, "-c", ENDED_IN_ORDER, str(built)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


@pytest.mark.parametrize(
    "case",
    [
        Case("llama-mqa", target="portable"),
        Case(target="portable", prefill_chunk=96),
        Case("gemma2", target="portable", prefill_chunk=24),
    ],
    ids=str,
)
def test_greedy_tokens_and_logits_agree_with_transformers(case: Case) -> None:
    """All prompts decode beside each other, from the batch slots that their chunks filled."""
    executor = executor_of(case)
    wants = [cases.oracle(case, length, STEPS) for length in LENGTHS]
    for slot, want in enumerate(wants):
        prediction = executor.prefill_prompt(slot, want.prompt)
        assert_logits(prediction.logits, want.prefill_logits, f"{case} L={len(want.prompt)}")
    lengths = np.array(LENGTHS)
    for step in range(STEPS):
        tokens = np.array([want.tokens[step] for want in wants])
        found = executor.decode(tokens, lengths + step, lengths)
        for slot, want in enumerate(wants):
            assert_logits(found[slot].logits, want.decode_logits[step], f"{case} step {step}")


def test_outputs_do_not_depend_on_neighbours() -> None:
    case = Case(target="portable", decode_batches=(1, 3))
    llm = LLM.from_executor(executor_of(case), max_num_batched_tokens=20)
    assert_neighbours_change_nothing(llm, LLM.from_executor(executor_of(case)), 12)


FORMS: dict[str, dict[str, Any]] = {
    "steps of several tokens": {"tokens_per_step": 4},
    "blocks": {"extend": True},
    "blocks of a hybrid": {"checkpoint": "qwen3_5_text", "extend": True},
    "weights as inputs": {"checkpoint": "llama-tied", "share_weights": True},
    "votes with ties": {"vote": "sum-squares", "pool": "max", "softmax": "causal", "group": "max"},
    "full cache": {"policy": "full"},
    "nothing kept": {"policy": "streaming"},
    "sparse prefill": {"prefill_chunk": 8, "prefill_budget": 24},
    "a choice of slots to read": {"target": "openvino", "L_max": 288, "K": 240},
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * ("hybrid" in n)) for n in FORMS]
)
def test_every_form_gives_the_tokens_of_onnx_runtime(name: str) -> None:
    form = FORMS[name]
    build = build_of(Case(**{"target": "portable", **form}))
    prefill = "blocks" if "extend" in form else "chunks"
    llms = [
        LLM.from_executor(open_executor(build, backend=backend, threads=1, prefill=prefill))
        for backend in ("onnxruntime", "openvino")
    ]
    prompts = [cases.prompt(length) for length in LENGTHS]
    params = SamplingParams(max_tokens=7, ignore_eos=True)
    expected, found = ([one.token_ids for one in llm.generate(prompts, params)] for llm in llms)
    assert found == expected


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        (Case(), {}, "--backend openvino is not supported for a build with --target onnxruntime"),
        (
            Case(target="portable", cache_dtype="fp16"),
            {},
            "--backend openvino is not supported for a build with caches in fp16",
        ),
        (Case(target="portable"), {"device": "NPU"}, "OpenVINO finds no NPU on this machine"),
        (
            Case(target="portable"),
            {"backend": "onnxruntime", "precision": "bf16"},
            "--precision bf16 is not supported with another backend than openvino",
        ),
        (
            Case(target="portable"),
            {"device": "GPU", "threads": 2},
            "--threads 2 is not supported with --device GPU",
        ),
        (Case(target="portable"), {"threads": 513}, "513 threads cannot be used"),
        (Case(target="portable"), {"precision": "f64"}, "OpenVINO has no precision 'f64'"),
    ],
    ids=["target", "caches", "device", "backend", "threads", "no threads", "precision"],
)
def test_what_it_cannot_run_is_refused(case: Case, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_executor(build_of(case), **{"backend": "openvino", **options})
