"""A method is one folder and a row: all that the toy adds takes effect."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnxruntime import InferenceSession

from snapexport import LLM, SamplingParams
from snapexport.builder import build
from snapexport.builder.options import BuildOptions
from snapexport.builder.plan.plan import make_plan, plan_report
from snapexport.builder.plan.request import PlanRequest
from snapexport.cli.app import main
from snapexport.contract.build_directory import Build
from snapexport.contract.names import PROMPT_LENGTH
from snapexport.errors import UserError
from snapexport.methods import table
from snapexport.runtime.engine.executor import Executor
from snapexport.runtime.engine.graph_set import GraphSet, Role
from tests.methods.toy.spec import GRAPH, LAST, PIECE, SUM, TOY

OPTIONS = {"L_max": 64, "L_recent": 12, "K": 8, "L_obs": 4, "prefill_chunk": 24, "batch": 2}
PROMPTS = [list(range(3, 3 + length)) for length in (60, 5, 40)]
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module", autouse=True)
def toy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "METHODS", (*table.METHODS, TOY))
        yield


@pytest.fixture(scope="module")
def made(toy: None, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("toy") / "b"
    return build(checkpoint, out, toy_factor=3, baseline=True, **OPTIONS)


def test_toy_adds_an_output_and_a_graph_that_the_manifest_records(made: Build) -> None:
    again = Build.open(made.directory)
    assert GRAPH in again.manifest.graphs and f"baseline-{GRAPH}" not in again.manifest.graphs
    assert SUM in {spec.name for spec in again.manifest.graphs["prefill"].outputs}
    recorded = json.loads((made.directory / "manifest.json").read_text())["graph_options"]
    assert recorded["methods"] == {"toy": {"toy_factor": 3}}


def test_toys_taker_takes_its_pieces_and_answers_are_the_same(
    made: Build, tiny_build: Build
) -> None:
    plain = LLM(tiny_build.directory, threads=1).generate(PROMPTS, PARAMS)
    llm = LLM(made.directory, threads=1)
    assert [one.token_ids for one in llm.generate(PROMPTS, PARAMS)] == [
        one.token_ids for one in plain
    ]
    executor = llm.executor
    assert isinstance(executor, Executor)
    assert executor._takers[PIECE].last == [59, 59, 39, 39]  # type: ignore[attr-defined]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_toys_graph_is_loaded_by_executors_for_which_its_row_says_so(
    made: Build, role: Role
) -> None:
    graphs = GraphSet.of(made, baseline=False, role=role)
    assert (GRAPH in graphs.names) == (role == "prefill")


def test_toys_graph_is_one_of_another_target(checkpoint: Path, tmp_path: Path) -> None:
    made = build(checkpoint, tmp_path / "b", toy_factor=3, target="tensorrt", **OPTIONS)
    session = InferenceSession(made.graph(GRAPH), providers=["CPUExecutionProvider"])
    assert session.run([LAST], {PROMPT_LENGTH: np.array([37])})[0].tolist() == [36]


def test_build_without_the_flag_has_nothing_of_the_toy(checkpoint: Path, tmp_path: Path) -> None:
    plain = build(checkpoint, tmp_path / "b", **OPTIONS)
    assert GRAPH not in plain.manifest.graphs
    assert SUM not in {spec.name for spec in plain.manifest.graphs["prefill"].outputs}


def test_a_build_of_a_method_that_is_not_known_is_refused(
    made: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "METHODS", table.METHODS[:-1])
    with pytest.raises(UserError):
        Build.open(made.directory)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"toy_factor": 3, "policy": "full"}, "--toy-factor is not supported with --policy full"),
        ({"toy_factor": -1}, "--toy-factor -1 is below 0"),
    ],
)
def test_toys_rule_and_range_are_refused_by_flag(
    flags: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        BuildOptions.of(model="m", out=tmp_path / "b", L_max=64, **flags)
    assert refused.value.message.startswith(message) and refused.value.hint


def test_toy_is_planned(checkpoint: Path) -> None:
    given = {"model": str(checkpoint), "L_max": 64, "toy_factor": 3, "policy": "snapstream"}
    plan = make_plan(PlanRequest(1 << 32, given))
    assert "--toy-factor 3" in plan_report(plan)["recommendation"]["command"]


def test_toys_flag_is_one_of_build_and_inspect_prints_its_words(
    made: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["build", "--help"])
    assert "--toy-factor N" in capsys.readouterr().out
    assert main(["inspect", str(made.directory)]) == 0
    assert "times 3" in capsys.readouterr().out
