"""Decode graphs of fewer batch slots equal the first rows of the graph of all."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from snapexport.builder import BuildOptions
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphName
from tests.builds import build


@pytest.fixture(scope="module")
def small_batches_build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    out = tmp_path_factory.mktemp("batches") / "b"
    return build(
        checkpoint,
        out,
        L_max=64,
        kv_budget=24,
        prefill_chunk=32,
        batch=4,
        decode_batches=(1, 3, 4),
        baseline=True,
    )


def test_manifest_names_the_decode_graphs_of_fewer_batch_slots(small_batches_build: Build) -> None:
    assert small_batches_build.manifest.decode_graphs() == {
        1: "decode.1",
        3: "decode.3",
        4: "decode",
    }
    assert small_batches_build.manifest.decode_graphs("baseline-") == {
        1: "baseline-decode.1",
        3: "baseline-decode.3",
        4: "baseline-decode",
    }


@pytest.mark.parametrize("prefix", ["", "baseline-"])
def test_decode_graphs_of_fewer_batch_slots_agree_with_that_of_all(
    small_batches_build: Build, prefix: str
) -> None:
    rng = np.random.default_rng(0)
    feeds = {}
    for spec in small_batches_build.manifest.graphs[f"{prefix}decode"].inputs:
        floats = spec.dtype == "float32"
        feeds[spec.name] = (
            rng.standard_normal(spec.shape, np.float32)
            if floats
            else rng.integers(0, 20, spec.shape)
        )
    whole = run(small_batches_build, f"{prefix}decode", feeds)
    for slots, graph in small_batches_build.manifest.decode_graphs(prefix).items():
        few = run(
            small_batches_build, graph, {name: value[:slots] for name, value in feeds.items()}
        )
        assert few.keys() == whole.keys()
        for name, value in few.items():
            np.testing.assert_allclose(value, whole[name][:slots], atol=1e-5, err_msg=name)


def run(
    small_batches_build: Build, graph: GraphName, feeds: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        small_batches_build.graph(graph), options, providers=["CPUExecutionProvider"]
    )
    outputs = [node.name for node in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, feeds), strict=True))


@pytest.mark.parametrize(
    ("batch", "choice", "expected"),
    [
        (1, {}, []),
        (4, {}, [1]),
        (16, {}, [1, 4]),
        (17, {}, [1, 4, 16]),
        (8, {"decode_batches": (8,)}, []),
        (8, {"decode_batches": (5, 2, 5)}, [2, 5]),
        (16, {"target": "tensorrt"}, [1, 4]),
        (16, {"target": "tensorrt", "share_weights": False}, []),
        (16, {"weights": "int4"}, [1]),
        (1, {"weights": "int4"}, []),
        (16, {"dtype": "fp16"}, []),
        (16, {"target": "tensorrt", "decode_batches": (1,)}, [1]),
    ],
    ids=str,
)
def test_default_decode_batches_follow_from_batch_and_target(
    batch: int, choice: dict, expected: list[int], tmp_path: Path
) -> None:
    options = BuildOptions.of(model="m", out=tmp_path, L_max=64, batch=batch, **choice)
    assert options.smaller_batches == expected
