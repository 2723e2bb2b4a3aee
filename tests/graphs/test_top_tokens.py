"""Builds with top tokens: outputs of their graphs, and requests answered as without them."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray

from snapexport.builder.derive import derive
from snapexport.builder.lint import lint_build
from snapexport.cli.app import main
from snapexport.compare.loop import Loop
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.graphs.passes.base import SurgeryError
from snapexport.methods.table import graph_options
from snapexport.methods.top_tokens.spec import OUTPUTS, TopTokensOptions
from snapexport.methods.top_tokens.surgery import TopTokens
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.bound import BoundGraph
from tests.oracle import cases, checkpoints
from tests.oracle.cases import Case, build_of

COUNT = 8
CHUNKED = Case(decode_batches=(1,), baseline=True, top_tokens=COUNT)
SINGLE_SHOT = Case(target="portable", prefill_chunk=96, baseline=True, top_tokens=COUNT)
TENSORRT = Case(target="tensorrt", top_tokens=COUNT)
PLAIN = replace(CHUNKED, top_tokens=0)
layouts = pytest.mark.parametrize("case", [CHUNKED, SINGLE_SHOT], ids=["chunked", "single shot"])
ROWS = 3
Logits = NDArray[np.float32]


@cache
def session(vocabulary: int, count: int) -> ort.InferenceSession:
    """The pass alone, on a graph that returns its input as logits."""
    shape = (ROWS, vocabulary)
    given, logits = (gs.Variable(name, np.float32, shape) for name in ("given", names.LOGITS))
    nodes = [gs.Node("Identity", inputs=[given], outputs=[logits])]
    graph = gs.Graph(nodes, inputs=[given], outputs=[logits], opset=24)
    TopTokens(count).apply(graph)
    model = gs.export_onnx(graph.cleanup().toposort())
    model.ir_version = 12
    providers = ["CPUExecutionProvider"]
    return ort.InferenceSession(model.SerializeToString(), providers=providers)


def run_pass(logits: Logits, count: int, temperature: Any = 1.0) -> dict[str, NDArray[Any]]:
    run = session(logits.shape[1], count)
    temperatures = np.full(ROWS, temperature, np.float32)
    outputs = run.run(None, {"given": logits, names.TEMPERATURE: temperatures})
    return dict(zip([one.name for one in run.get_outputs()], outputs, strict=True))


def normal(vocabulary: int, scale: float = 3.0) -> Logits:
    shape = ROWS, vocabulary
    return np.random.default_rng(0).normal(scale=scale, size=shape).astype(np.float32)


@pytest.mark.parametrize("vocabulary", [257, 32000, 128256])
@pytest.mark.parametrize("temperature", [1.0, (0.01, 0.7, 50.0)])
def test_top_tokens_and_log_normalizer_equal_torchs(vocabulary: int, temperature: Any) -> None:
    logits = normal(vocabulary)
    out = run_pass(logits, 50, temperature)
    np.testing.assert_array_equal(out[names.LOGITS], logits)
    values, tokens = torch.from_numpy(logits).topk(50)
    np.testing.assert_array_equal(out[OUTPUTS.logits], values)
    np.testing.assert_array_equal(out[OUTPUTS.tokens], tokens)
    divided = torch.from_numpy(logits).double() / torch.tensor(temperature).reshape(-1, 1)
    np.testing.assert_allclose(out[OUTPUTS.log_normalizer], divided.logsumexp(-1), rtol=1e-6)


def test_log_normalizer_keeps_many_small_weights_beside_a_large_one() -> None:
    """128,255 weights of 1e-8 beside a 1: added one by one in float32 they vanish."""
    logits = np.full((ROWS, 128256), np.log(1e-8), np.float32)
    logits[:, 0] = 0
    log_sum = np.log1p(128255e-8)
    np.testing.assert_allclose(run_pass(logits, 1)[OUTPUTS.log_normalizer], log_sum, rtol=1e-3)


def test_top_tokens_list_the_lower_token_first_in_a_tie() -> None:
    logits = np.zeros((ROWS, 257), np.float32)
    logits[:, [40, 200]] = 1
    np.testing.assert_array_equal(run_pass(logits, 5)[OUTPUTS.tokens], [[40, 200, 0, 1, 2]] * ROWS)


@pytest.mark.parametrize("place", [0, 100, 256])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_log_normalizer_is_finite_exactly_if_a_token_can_be_chosen(
    place: int, broken: float
) -> None:
    logits = normal(257)
    logits[1, place] = broken
    logits[2, :] = -np.inf
    for temperature in (1e-20, 0.7, 1e20):
        found = np.isfinite(run_pass(logits, 8, temperature)[OUTPUTS.log_normalizer])
        assert found.tolist() == [True, False, False]
    logits[:, :] = -np.inf
    logits[:, place] = -5.0
    assert np.isfinite(run_pass(logits, 8, 1e20)[OUTPUTS.log_normalizer]).all()


def test_top_tokens_pass_refuses_a_graph_without_logits() -> None:
    with pytest.raises(SurgeryError, match="not one float32 tensor"):
        TopTokens(4).apply(gs.Graph(opset=24))


@pytest.mark.parametrize("case", [CHUNKED, SINGLE_SHOT, TENSORRT], ids=str)
def test_every_graph_with_logits_has_top_token_outputs(case: Case) -> None:
    build = build_of(case)
    assert build.manifest.graph_options.of(TopTokensOptions).top_tokens == COUNT
    for graph in build.manifest.graphs.values():
        inputs, outputs = ({s.name: s for s in specs} for specs in (graph.inputs, graph.outputs))
        if names.LOGITS not in outputs:
            assert names.TEMPERATURE not in inputs
            continue
        rows, vocabulary = outputs[names.LOGITS].shape
        assert vocabulary == checkpoints.VOCABULARY
        found = {
            one.name: (one.dtype, one.shape)
            for one in (*graph.inputs, *graph.outputs)
            if "top_" in one.name or one.name in (names.TEMPERATURE, OUTPUTS.log_normalizer)
        }
        assert found == {
            "temperature": ("float32", [rows]),
            "top_tokens": ("int64", [rows, COUNT]),
            "top_logits": ("float32", [rows, COUNT]),
            "log_normalizer": ("float32", [rows]),
        }


def test_logits_with_and_without_top_tokens_are_bit_identical() -> None:
    ours, plain = (BoundGraph(build_of(case), "decode") for case in (CHUNKED, PLAIN))
    ours.arrays[names.TEMPERATURE][:] = 1
    for graph in (ours, plain):
        graph.arrays[names.INPUT_IDS][:, 0] = 5, 6, 7
        graph.run()
    np.testing.assert_array_equal(ours.arrays[names.LOGITS], plain.arrays[names.LOGITS])


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-k": {"temperature": 0.8, "top_k": 5},
    "top-k of all top_tokens, top-p": {"temperature": 0.8, "top_k": 8, "top_p": 0.9},
    "top-k beyond top_tokens": {"temperature": 0.8, "top_k": 9},
    "top-p": {"temperature": 0.8, "top_p": 0.5},
    "top-p of nearly all": {"temperature": 2.0, "top_p": 0.99},
    "temperature": {"temperature": 0.8},
    "temperature near zero": {"temperature": 1e-320, "top_p": 0.9},
    "logprobs": {"logprobs": 3},
    "drawn logprobs": {"temperature": 0.8, "top_k": 5, "logprobs": 2},
}


@layouts
@pytest.mark.parametrize("baseline", [False, True], ids=["compressed", "full"])
def test_outputs_with_and_without_top_tokens_are_equal(case: Case, baseline: bool) -> None:
    """All kinds of sampling in one batch, after prompts and after continuations."""
    ours, plain = (
        LLM.from_executor(
            open_executor(build_of(replace(case, top_tokens=count)), baseline=baseline, threads=1),
            max_num_batched_tokens=40,
        )
        for count in (COUNT, 0)
    )
    prompts = [cases.prompt(20 + 7 * number) for number in range(len(KINDS))]
    params = [SamplingParams(8, seed=3, ignore_eos=True, **kind) for kind in KINDS.values()]
    followed = [cases.prompt(1 + number % 3, 1) for number in range(len(KINDS))]
    for continuations in (None, followed):
        got, expected = (
            llm.generate(prompts, params, continuations=continuations) for llm in (ours, plain)
        )
        assert dict(zip(KINDS, got, strict=True)) == dict(zip(KINDS, expected, strict=True))
    scored = [cases.prompt(3, number) for number in range(len(prompts))]
    assert ours.score(prompts, scored) == plain.score(prompts, scored)


def test_nan_in_one_batch_slot_ends_its_request_alone(tmp_path: Path) -> None:
    """A token whose embedding is NaN: in a prompt, and fed in decode."""
    broken, token = tmp_path / "broken", 77
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(cases.checkpoint("llama"))
    model.get_input_embeddings().weight.data[token] = np.nan
    model.save_pretrained(tmp_path / "model")
    cases.build_checkpoint(tmp_path / "model", broken, Case(top_tokens=COUNT))
    llm = LLM.from_executor(open_executor(Build.open(broken), threads=1))
    good = [prompt for prompt in map(cases.prompt, range(20, 30)) if token not in prompt][:2]
    params = SamplingParams(6, temperature=0.8, top_k=4, seed=0, ignore_eos=True)
    expected = llm.generate(good, params)
    assert all(one.finish_reason == "length" for one in expected)
    first, *others = llm.generate([[5, token, 6], *good], params)
    assert (first.finish_reason, first.token_ids, others) == ("error", (), expected)
    expected = llm.generate(good, params, continuations=[[9], [9]])
    prompts, continuations = [[5, 6], *good], [[7, token], [9], [9]]
    first, *others = llm.generate(prompts, params, continuations=continuations)
    assert (first.finish_reason, first.token_ids, others) == ("error", (), expected)


def test_derived_build_keeps_the_number_of_top_tokens(tmp_path: Path) -> None:
    build = build_of(CHUNKED)
    full = derive(build, build.manifest.geometry.as_full(), tmp_path / "full")
    assert full.manifest.graph_options.of(TopTokensOptions).top_tokens == COUNT
    assert OUTPUTS.log_normalizer in [one.name for one in full.manifest.graphs["decode"].outputs]


@pytest.mark.parametrize("case", [CHUNKED, SINGLE_SHOT], ids=["chunked", "single shot"])
def test_polygraphy_runner_gives_the_same_logits_with_top_tokens(case: Case) -> None:
    answers = []
    for one in (case, replace(case, top_tokens=0)):
        with Loop(build_of(one)) as backend:
            answers.append(backend.logits(np.array(cases.prompt(45)), 40))
    np.testing.assert_array_equal(*answers)


def test_lint_finds_nothing_in_a_build_with_top_tokens() -> None:
    assert lint_build(build_of(TENSORRT), "tensorrt") == []


def test_inspect_says_whether_sampling_uses_top_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    for case, line in ((CHUNKED, "from 8 top tokens"), (PLAIN, "from logits")):
        assert main(["inspect", str(build_of(case).directory)]) == 0
        assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--top-tokens", "-1"], "--top-tokens -1 is below 0"),
        (["--top-tokens", "258"], "--top-tokens 258 is above the model's vocabulary of 257"),
        (["--top-tokens", "4000", "--target", "tensorrt"], "above 3840, the most that TensorRT's"),
    ],
)
def test_top_tokens_flag_out_of_range_is_refused(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = str(cases.checkpoint("llama")), tmp_path / "b"
    assert main(["build", "--model", model, "--L-max", "64", "--out", str(out), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and "\nhint: " in error
    assert not list(tmp_path.iterdir())


def test_top_tokens_may_be_the_whole_vocabulary(tmp_path: Path) -> None:
    build = build_of(PLAIN)
    every = graph_options({"top_tokens": checkpoints.VOCABULARY})
    whole = derive(build, build.manifest.geometry, tmp_path / "whole", every)
    params = SamplingParams(8, temperature=1.5, top_p=0.99, seed=1, ignore_eos=True)
    ours, plain = (
        LLM.from_executor(open_executor(build, threads=1)).generate(cases.prompt(30), params)
        for build in (whole, build)
    )
    assert ours == plain
