"""Files of learned scores: our own, KVzap's form, and what is none; calibrate writes both files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from snapexport.cli.app import main
from snapexport.errors import UserError
from snapexport.methods.learned.scores import LearnedScores, Linear
from snapexport.vault import CHECKPOINT
from tests.builds import build

SIZES: Any = {"L_max": 512, "kv_budget": 64, "batch": 1, "prefill_chunk": 128}
E, KV_HEADS = 128, 2
"""Of the bundled checkpoint."""


def networks(count: int, inner: int | None) -> torch.nn.ModuleList:
    """As KVzap has them: a linear layer for each of the model's, or two with a GELU."""
    nn = torch.nn
    return nn.ModuleList(
        nn.Linear(E, KV_HEADS)
        if inner is None
        else nn.Sequential(nn.Linear(E, inner), nn.GELU(), nn.Linear(inner, KV_HEADS))
        for _ in range(count)
    )


@pytest.mark.parametrize("inner", [None, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_published_form_is_read_and_built(
    inner: int | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    made = networks(2, inner).to(dtype)
    folder = tmp_path / "kvzap"
    folder.mkdir()
    save_file(
        {f"layers.{n}": one for n, one in made.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text('{"model_type": "kvzap"}')
    read = LearnedScores.read(folder)
    for layer, network in read.layers.items():
        weights = list(made[layer].parameters())
        arrays = [array for linear in network for array in linear]
        for wanted, found in zip(weights, arrays, strict=True):
            np.testing.assert_array_equal(wanted.float().detach().numpy(), found)
    build(CHECKPOINT, tmp_path / "b", scores=folder, **SIZES)


def test_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)

    def linear(out: int, given: int) -> Linear:
        array: NDArray[np.float32] = draw.standard_normal((out, given + 1)).astype(np.float32)
        return Linear(array[:, :-1], array[:, -1])

    layers = {0: (linear(2, 5),), 3: (linear(4, 5), linear(2, 4))}
    (file := tmp_path / "scores.safetensors").write_bytes(LearnedScores(layers).content())
    read = LearnedScores.read(file).layers
    assert read.keys() == layers.keys()
    for layer, network in layers.items():
        for wanted, found in zip(network, read[layer], strict=True):
            np.testing.assert_array_equal(wanted.weight, found.weight)
            np.testing.assert_array_equal(wanted.bias, found.bias)


_WEIGHT, _BIAS = torch.zeros(KV_HEADS, E), torch.zeros(KV_HEADS)
_WHOLE = {f"layers.{n}.{k}": v for n in range(2) for k, v in (("weight", _WEIGHT), ("bias", _BIAS))}


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"model.embed.weight": _WEIGHT}, "does not hold learned scores: it has model.embed"),
        ({"layers.0.weight": _WEIGHT.int()}, "does not hold learned scores"),
        ({"layers.0.weight": _WEIGHT}, "layer 0 are not a network"),
        ({"layers.0.weight": _WEIGHT, "layers.0.bias": torch.zeros(3)}, "are not a network"),
        ({"layers.0.2.weight": _WEIGHT, "layers.0.2.bias": _BIAS}, "are not a network"),
        (_WHOLE | {"layers.0.bias": _BIAS / 0}, "a value that is not a number"),
        (_WHOLE | {"layers.2.weight": _WEIGHT, "layers.2.bias": _BIAS}, "the model has 2 layers"),
        ({k: v for k, v in _WHOLE.items() if ".0." in k}, "layer 1 has no learned scores"),
        ({k: v[:1].clone() for k, v in _WHOLE.items()}, "learned scores of 1 KV heads"),
        ({k: v[..., :9].clone() for k, v in _WHOLE.items()}, "learned scores of 9 numbers"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_scores_of_another_form_or_model_are_refused(
    tensors: dict[str, torch.Tensor], says: str, tmp_path: Path
) -> None:
    own = {name: one.clone() for name, one in tensors.items()}
    save_file(own, file := tmp_path / "scores.safetensors")
    with pytest.raises(UserError, match=says) as error:
        build(CHECKPOINT, tmp_path / "b", scores=file, **SIZES)
    assert error.value.hint and not (tmp_path / "b").exists()


def test_another_file_is_refused_as_scores(tmp_path: Path) -> None:
    (file := tmp_path / "notes.txt").write_text("no scores")
    with pytest.raises(UserError, match="does not hold learned scores: ") as error:
        LearnedScores.read(file)
    assert "calibrate" in error.value.hint


def test_one_run_measures_budgets_and_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, out = tmp_path / "plain", tmp_path / "measured"
    build(CHECKPOINT, plain, baseline=True, **SIZES)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Line {n} of {n * 7} has {n % 5} words. " for n in range(300)))
    command = ["calibrate", str(plain), "--documents", str(text), "--out", str(out)]
    few = ["--passages", "2", "--length", "200"]
    assert main([*command, *few, "--head-budgets", "--scores", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert -1 <= report["correlation"] <= 1 and report["share_of_a_quarter"] > 0
    files = {"head_budget": out / "head_budgets.json", "scores": out / "scores.safetensors"}
    made = build(CHECKPOINT, tmp_path / "b", **files, **SIZES)
    assert made.manifest.geometry.slots.head_groups
    assert made.manifest.geometry.vote.vote_queries == "both"
    assert main([*command[:-1], str(text), *few, "--head-budgets", "--scores"]) == 2
    assert "several measurements go into a folder" in capsys.readouterr().err


def test_a_build_learns_scores_itself(tmp_path: Path) -> None:
    """Equal to what calibrate writes of the same texts: the same positions are kept."""
    made = build(CHECKPOINT, tmp_path / "b", calibrate=(), vote_queries="both", **SIZES)
    geometry = made.manifest.geometry
    assert geometry.slots.head_groups and geometry.vote.vote_queries == "both"
    assert "votes.0" in {one.name for one in made.manifest.graphs["compress"].inputs}
    assert not list(made.directory.glob("*.safetensors")) and not list(
        made.directory.glob("*trace*")
    )
