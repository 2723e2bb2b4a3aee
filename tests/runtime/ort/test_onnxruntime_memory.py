"""Memory of the CPU backend: caches are updated in place, weights are mapped from their file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from snapexport.builder import build
from snapexport.contract import names
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import GraphEntry
from snapexport.runtime.engine.backend import Buffers
from snapexport.runtime.engine.bound_graph import BoundGraph, allocate
from snapexport.runtime.engine.graph_set import GraphSet
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.ort.backend import OnnxRuntimeBackend
from tests.oracle import cases
from tests.oracle.cases import Case
from tests.runtime.processes import run_python


@pytest.fixture(autouse=True)
def _library_warnings() -> None:
    """Warnings of ONNX Runtime, which `snapexport diff` may have silenced in this process."""
    ort.set_default_logger_severity(2)


ROOMY = Case(L_max=1024, L_sink=24, L_recent=500, K=500, batch=32, baseline=True)
"""Decode's caches are 4 MiB for each layer's keys, far more than anything else in a step."""

# What the process holds, and the most it held since `reset`, in bytes.
MEASURE = """
import json, re, sys
from pathlib import Path
import numpy as np
from snapexport.contract.build_directory import Build
from snapexport.runtime.engine.open_executor import open_executor
import onnxruntime  # the library itself is no growth

def of_process(name, file="status"):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self", file).read_text())[1]) << 10

def reset():
    Path("/proc/self/clear_refs").write_text("5")

def make(**options):
    return open_executor(Build.open(sys.argv[1]), threads=1, **options)

def decode(engine, position=600):
    ones = np.ones(engine.limits.batch, np.int64)
    engine.decode(ones, position * ones, position * ones)
"""


def measure(directory: Path, script: str) -> Any:
    result = run_python(MEASURE + script, str(directory))
    assert "onnxruntime" not in result.stderr, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def built() -> Build:
    return Build.open(cases.built(ROOMY).directory)


@pytest.fixture
def decode(built: Build) -> GraphEntry:
    return built.manifest.graphs["decode"]


@pytest.fixture
def backend(built: Build) -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend(built, GraphSet.of(built, baseline=False), threads=1)


@pytest.fixture
def buffers(backend: OnnxRuntimeBackend, decode: GraphEntry) -> Buffers:
    return allocate(backend.memory, decode, {})


def test_past_and_present_cache_are_one_buffer(buffers: Buffers) -> None:
    for layer in range(2):
        assert buffers[names.past_key(layer)] is buffers[names.present_key(layer)]
        assert buffers[names.past_value(layer)] is buffers[names.present_value(layer)]


def test_attended_caches_share_the_buffer_of_past_and_present() -> None:
    """Otherwise GroupQueryAttention copies the whole cache."""
    built = Build.open(cases.built(Case(decode_attention="valid")).directory)
    arrays = open_executor(built, threads=1).decode_buffers
    attended = [name for name in arrays if names.is_attended(name)]
    assert len(attended) == 4
    for name in attended:
        assert arrays[name].ctypes.data == arrays[names.past_of(name)].ctypes.data


def test_decode_step_writes_one_position_of_each_row_in_place(
    backend: OnnxRuntimeBackend, decode: GraphEntry, buffers: Buffers
) -> None:
    bound = BoundGraph(backend, "decode", decode, buffers)
    caches = {n: a for n, a in bound.arrays.items() if names.is_past(n)}
    rng = np.random.default_rng(0)
    for array in caches.values():
        array[...] = rng.normal(size=array.shape)
    before = {name: array.copy() for name, array in caches.items()}
    positions = rng.permutation(32)  # below L_sink + L_recent: slot and position are the same
    bound.arrays[names.POSITION_IDS][:, 0] = positions
    bound.run()
    for name, array in caches.items():
        changed = (array != before[name]).any(axis=(1, 3))
        assert [list(np.flatnonzero(row)) for row in changed] == [[p] for p in positions]


def test_onnxruntime_warns_if_it_has_to_copy_a_cache(
    backend: OnnxRuntimeBackend, decode: GraphEntry, buffers: Buffers, capfd: Any
) -> None:
    """The other tests rely on it: no word on stderr means that nothing was copied."""
    backend.bind("decode", buffers)()
    assert "onnxruntime" not in capfd.readouterr().err
    specs = (*decode.inputs, *decode.outputs)
    apart = {spec.name: backend.memory.allocate(spec) for spec in specs}
    backend.bind("decode", apart)()
    assert "in-place" in capfd.readouterr().err.lower()


def test_decode_step_allocates_nothing_of_the_caches_size() -> None:
    peak = measure(
        cases.built(ROOMY).directory,
        """
decode(make())  # the libraries' own pages
grown = {}
for baseline in (False, True):
    engine = make(baseline=baseline)
    for name, array in engine.decode_buffers.items():
        array[...] = 0  # the caches' own pages
    before = of_process("VmRSS")
    reset()
    decode(engine)
    grown[str(baseline)] = of_process("VmHWM") - before
print(json.dumps(grown))
""",
    )
    cache = 32 * 2 * 1024 * 16 * 4
    assert peak["False"] < cache / 2 and peak["True"] < cache / 2


@pytest.fixture(scope="module")
def heavy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with 60 MB of weights."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=512,
        intermediate_size=4608,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=1024,
    )
    directory = tmp_path_factory.mktemp("heavy")
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("target", ["onnxruntime", "portable"])
def test_prefill_and_decode_share_the_mapped_weights(
    heavy_model: Path, tmp_path: Path, target: str
) -> None:
    sizes: dict[str, Any] = {"L_max": 64, "L_recent": 16, "K": 12, "prefill_chunk": 32}
    sizes["decode_batches"] = ()
    built = build(heavy_model, tmp_path / "build", target=target, **sizes)
    grown = measure(
        built.directory,
        """
before = {n: of_process(n, "smaps_rollup") for n in ("Pss_Anon", "Pss", "Rss")}
engine = make()
engine.prefill_prompt(0, [1] * 20)
decode(engine, 20)
print(json.dumps({n: of_process(n, "smaps_rollup") - before[n] for n in before}))
""",
    )
    weights = sum(file.size for file in built.manifest.weights)
    assert weights > 50e6
    assert grown["Pss_Anon"] < 0.25 * weights, "weights were copied"
    assert grown["Pss"] < 1.5 * weights, "prefill and decode do not share weights"
    assert grown["Rss"] < 1.5 * weights, "each graph maps the weights for itself"
