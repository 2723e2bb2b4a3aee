"""The estimate of memory, from a manifest alone, against sums by hand; refused options."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snapexport.builder.engines import EngineOptions
from snapexport.builder.engines.folder import Gpu, engine_name
from snapexport.builder.engines.memory import (
    Estimate,
    Free,
    estimate,
    host_available,
    require_room,
)
from snapexport.contract.engines import EngineEntry, GraphEngine
from snapexport.contract.graph_options import GraphOptions
from snapexport.contract.manifest import (
    FORMAT_VERSION,
    GraphEntry,
    Manifest,
    TensorSpec,
    WeightFile,
)
from snapexport.contract.memory import FACTORS, GPU_CONTEXT
from snapexport.contract.records import GeometryRecord
from snapexport.errors import UserError
from tests.facts import model_facts

GIB = 2**30
WEIGHTS = 16 * GIB
L_MAX, SLOTS, BATCH, CHUNK = 131072, 8192, 4, 512
TOKEN = 8 * 128 * 2
"""Bytes of one position's keys, or values, in a layer: 8 KV heads of 128, in bf16."""


def spec(name: str, dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=list(shape))


def caches(prefix: str, batch: int, slots: int) -> list[TensorSpec]:
    """Key and value caches of one layer."""
    return [
        spec(f"{prefix}.0.{part}", "bfloat16", batch, 8, slots, 128) for part in ("key", "value")
    ]


def graph(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> GraphEntry:
    return GraphEntry(file=f"{name}.onnx", sha256="", inputs=inputs, outputs=outputs)


@pytest.fixture
def manifest() -> Manifest:
    """One layer, chunked, with a graph for the first slot alone and a baseline's decode."""
    ids, logits = spec("input_ids", "int64", 1, CHUNK), spec("logits", "float32", 1, 1000)
    query = spec("query_window.0", "bfloat16", 1, 32, 8, 128)
    full = caches("past_key_values", 1, L_MAX)
    prefill = graph("prefill", [ids, *full], [logits, *caches("present", 1, L_MAX), query])
    compress = graph("compress", [*full, query], caches("present", 1, SLOTS))
    ring = caches("past_key_values", BATCH, SLOTS), caches("present", BATCH, SLOTS)
    whole = caches("past_key_values", BATCH, L_MAX), caches("present", BATCH, L_MAX)
    first = caches("past_key_values", 1, SLOTS), caches("present", 1, SLOTS)
    return Manifest(
        format_version=FORMAT_VERSION,
        model=model_facts(1, head_dim=128),
        geometry=GeometryRecord("snapstream", L_MAX, 1, 4, 4092, 4096).geometry(),
        batch=BATCH,
        prefill_chunk=CHUNK,
        dtype="bf16",
        quantization=None,
        target="tensorrt",
        graph_options=GraphOptions(decode_attention="all"),
        graphs={
            "prefill": prefill,
            "compress": compress,
            "decode": graph("decode", *ring),
            "decode.1": graph("decode.1", *first),
            "baseline-decode": graph("baseline-decode", *whole),
        },
        traces={},
        tensor_parallel=1,
        segments={},
        weights=[WeightFile(file="w", size=WEIGHTS // 2, header_sha256="", sha256=None)] * 2,
        linked_weights=False,
        engines={},
        versions={},
    )


def test_estimate_counts_weights_inputs_and_outputs_of_each_graph(manifest: Manifest) -> None:
    estimated = estimate(manifest, manifest.graphs, stripped=False)
    window, logits, ids = 32 * 8 * 128 * 2, 4000, CHUNK * 8
    prefill = estimated.graphs["prefill"]
    assert prefill.host == FACTORS["tensorrt"].build_host + 2 * WEIGHTS
    # Caches are written in place: counted once.
    assert prefill.gpu == GPU_CONTEXT + WEIGHTS + ids + 2 * L_MAX * TOKEN + window + logits
    assert prefill.engine == WEIGHTS
    # The compress graph has no weights, and reads other caches than it writes.
    compress = estimated.graphs["compress"]
    assert (compress.host, compress.engine) == (FACTORS["tensorrt"].build_host, 0)
    assert compress.gpu == GPU_CONTEXT + 2 * L_MAX * TOKEN + window + 2 * SLOTS * TOKEN


def test_estimate_takes_memory_of_the_largest_graph_and_disk_of_all(manifest: Manifest) -> None:
    estimated = estimate(manifest, manifest.graphs, stripped=False)
    assert estimated.host == estimated.graphs["decode"].host
    assert estimated.gpu == estimated.graphs["baseline-decode"].gpu
    assert estimated.disk == 4 * WEIGHTS


def test_estimate_of_running_counts_a_weight_copy_for_each_plan(manifest: Manifest) -> None:
    ours = GPU_CONTEXT + 2 * WEIGHTS + 2 * L_MAX * TOKEN + BATCH * 2 * SLOTS * TOKEN
    ours += estimate(manifest, ["prefill"], stripped=False).graphs["prefill"].scratch
    for graphs in (["prefill", "compress", "decode"], manifest.graphs.keys() - {"decode.1"}):
        assert estimate(manifest, graphs, stripped=False).running == ours
    # One that runs fewer slots does so over the same caches, with its own weights.
    assert estimate(manifest, manifest.graphs, stripped=False).running == ours + WEIGHTS


def test_estimate_counts_shared_weights_once_and_in_no_engine(manifest: Manifest) -> None:
    matrix = spec("model.embed_tokens.weight", "bfloat16", 1000, 64)
    shared = manifest.model_copy(
        update={
            "graph_options": GraphOptions(share_weights=True),
            "graphs": {
                name: one.model_copy(update={"inputs": [*one.inputs, matrix]})
                for name, one in manifest.graphs.items()
                if name != "compress"
            },
        }
    )
    alone = estimate(manifest, shared.graphs, stripped=False)
    estimated = estimate(shared, shared.graphs, stripped=False)
    assert estimated.running == alone.running - 3 * WEIGHTS + 2 * 64_000
    assert (estimated.host, estimated.disk) == (FACTORS["tensorrt"].build_host, 0)


def test_estimate_of_stripped_plans_saves_a_weight_copy_and_the_disk(manifest: Manifest) -> None:
    estimated = estimate(manifest, manifest.graphs, stripped=True)
    assert (estimated.host, estimated.disk) == (FACTORS["tensorrt"].build_host + WEIGHTS, 0)
    whole = estimate(manifest, manifest.graphs, stripped=False)
    assert (estimated.gpu, estimated.running) == (whole.gpu, whole.running)


def test_estimate_of_scratch_has_a_copy_of_a_layers_cache_and_the_mask(manifest: Manifest) -> None:
    graphs = estimate(manifest, manifest.graphs, stripped=False).graphs
    assert graphs["prefill"].scratch == 2 * L_MAX * TOKEN + 2 * CHUNK * L_MAX
    assert graphs["decode"].scratch == 0
    engine = GraphEngine(file="f", size=1, sha256="", device_memory=12345)
    entry = EngineEntry(
        version="1.7",
        compute_capabilities=["8.9"],
        gpu=None,
        hardware_compatibility="none",
        version_compatible=False,
        stripped=False,
        plugins=None,
        graphs={"prefill": engine},
    )
    built = manifest.model_copy(update={"engines": {"rtx-sm_89": entry}, "target": "tensorrt-rtx"})
    estimated = estimate(built, built.graphs, stripped=False)
    assert estimated.graphs["prefill"].scratch == 12345
    assert (estimated.gpu, estimated.host) == (
        0,
        FACTORS["tensorrt-rtx"].build_host + int(1.4 * WEIGHTS),
    )


PLENTY = Free(host=2**60, gpu=2**60, disk=2**60)


@pytest.fixture
def estimated(manifest: Manifest) -> Estimate:
    return estimate(manifest, manifest.graphs, stripped=False)


@pytest.mark.parametrize(
    ("free", "message"),
    [
        (replace(PLENTY, host=20 * GIB), "at least 34 GiB of memory; 20 GiB are free"),
        (replace(PLENTY, gpu=8 * GIB), "at least 16.59 GiB of GPU memory; 8 GiB are free"),
        (replace(PLENTY, disk=40 * GIB), "at least 64 GiB of disk space; 40 GiB are"),
    ],
)
def test_engine_build_that_cannot_fit_is_refused(
    estimated: Estimate, free: Free, message: str
) -> None:
    with pytest.raises(UserError) as refused:
        require_room(estimated, free, stripped=False)
    assert message in refused.value.message
    assert ("--strip-weights" in refused.value.hint) == ("GPU" not in message)


def test_engine_inputs_and_outputs_are_not_refused(estimated: Estimate) -> None:
    assert estimated.gpu_fixed == GPU_CONTEXT + WEIGHTS < estimated.gpu
    require_room(estimated, replace(PLENTY, gpu=estimated.gpu_fixed), stripped=False)


def test_engine_build_with_enough_or_unknown_memory_is_allowed(estimated: Estimate) -> None:
    require_room(estimated, PLENTY, stripped=False)
    require_room(estimated, replace(PLENTY, host=None), stripped=False)


def test_free_host_memory_is_read_from_meminfo(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 100 kB\nMemAvailable:   64 kB\nSwapFree:   6 kB\nHugePages: 0\n")
    assert host_available(file) == 70 * 1024
    file.write_text("MemTotal: 100 kB\n")
    assert host_available(file) is None
    assert host_available(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hardware_compat": "ampere+"}, "--hardware-compat 'ampere+' is not known"),
        ({"optimization_level": 6}, "--optimization-level 6"),
        ({"workspace": 0}, "--workspace 0"),
        ({"plugins": Path("/no/library.so")}, "--plugins /no/library.so is not a file"),
        (
            {"timing_cache": Path("/no/cache")},
            "the directory of --timing-cache /no/cache does not exist",
        ),
    ],
)
def test_wrong_engine_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        EngineOptions(**options)
    assert message in refused.value.message


def test_engine_of_a_graph_that_the_build_lacks_is_refused(manifest: Manifest) -> None:
    assert EngineOptions().graphs_of(manifest) == tuple(manifest.graphs)
    assert EngineOptions(graphs=("decode", "prefill")).graphs_of(manifest) == ("prefill", "decode")
    with pytest.raises(UserError, match="no graph 'baseline-prefill'"):
        EngineOptions(graphs=("baseline-prefill",)).graphs_of(manifest)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "sm_120-nvidia_geforce_rtx_5090"),
        ({"hardware_compat": "same-compute-capability"}, "sm_120"),
        ({"hardware_compat": "ampere-plus", "version_compatible": True}, "ampere_plus-version_com"),
        ({"strip_weights": True, "refit": True}, "sm_120-nvidia_geforce_rtx_5090-stripped-refit"),
    ],
)
def test_engine_name_has_gpu_compatibility_and_options(options: dict[str, Any], name: str) -> None:
    gpu = Gpu("NVIDIA GeForce RTX 5090", "12.0", 0)
    assert engine_name(gpu, EngineOptions(**options)).startswith(name)
