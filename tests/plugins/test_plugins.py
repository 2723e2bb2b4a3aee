"""The plugin layer against a STUB registry, over the emulated kernels.

Everything runs twice: compiled over our stub of TensorRT's interface, and over TensorRT's own
headers where SNAPEXPORT_TENSORRT_INCLUDE_DIR names them. TensorRT itself is in neither.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from snapexport.plugins import binding
from tests.graphs.bodies import function
from tests.plugins.body import call_body
from tests.plugins.compiled import Libraries
from tests.plugins.emulated import random
from tests.plugins.loud import skip_loudly
from tests.plugins.stub import CUDA, HERE, Plugin, Registry, described, tensorrt_headers

SELECT = {"L_sink": 2, "L_recent": 7, "K": 6, "pool_kernel": [1, 5], "scale": 0.25, "softcap": 0.0}
VOTE = {"softmax": "candidates", "vote": "sum", "pool": "avg", "group": "mean"}
GATHER = {"L_sink": 2, "L_recent": 7, "spare": 0}


@dataclass(frozen=True)
class Built:
    stub: Path
    loadable: Path
    registering: Path


def includes(headers: str) -> list[str]:
    if headers == "stub":
        return [f"-I{HERE}"]
    folder = tensorrt_headers()
    if folder is None or not CUDA.is_dir():
        skip_loudly(
            "no NvInferRuntime.h (SNAPEXPORT_TENSORRT_INCLUDE_DIR) or no CUDA headers: the plugins "
            "were compiled over our stub alone, NOT AGAINST TENSORRT'S OWN HEADERS"
        )
    return ["-isystem", str(folder), "-isystem", str(CUDA)]


@pytest.fixture(scope="module", params=["stub", "TensorRT's headers"])
def built(
    request: pytest.FixtureRequest,
    compiler: str,
    emulated_library: Path,
    libraries: Libraries,
) -> Built:
    flags = "-std=c++17 -Wall -Wextra -Werror -shared -fPIC".split()
    command = [compiler, *flags, *includes(request.param), f"-I{binding.HOME}"]
    layer = binding.HOME / "tensorrt"
    sources = [str(path) for path in sorted(layer.glob("*.cpp"))]
    kernels = [str(emulated_library), f"-Wl,-rpath,{emulated_library.parent}"]
    hidden = ["-fvisibility=hidden", *sources]

    def made(name: str, *words: str) -> Path:
        return libraries.make(name, lambda out: [*command, *words, "-o", str(out)])

    stub = made("stub", str(HERE / "registry.cpp"), "-ldl")
    ways = {"loadable": (), "registering": ("-DSNAPEXPORT_REGISTERING",)}
    return Built(stub, *(made(name, *flag, *hidden, *kernels) for name, flag in ways.items()))


@pytest.fixture(scope="module")
def registry(built: Built) -> Registry:
    registry = Registry(built.stub)
    assert registry.load(built.loadable), registry.messages()
    return registry


def test_loadable_plugin_library_needs_no_tensorrt_symbol(built: Built) -> None:
    listed = subprocess.run(
        ["nm", "-D", "-C", str(built.loadable)], capture_output=True, text=True, check=True
    ).stdout
    symbols = [line.split()[-2:] for line in listed.splitlines()]
    assert {"getCreators", "setLoggerFinder"} <= {name for kind, name in symbols if kind == "T"}
    undefined = [name for kind, name in symbols if kind == "U"]
    assert not [name for name in undefined if "nvinfer1" in name or "PluginRegistry" in name]


def test_registering_plugin_library_registers_itself(built: Built) -> None:
    """A plain dlopen in another process, as Triton does it."""
    code = (
        "import ctypes, sys\n"
        "stub = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)\n"
        "stub.stub_name.restype = ctypes.c_char_p\n"
        "ctypes.CDLL(sys.argv[2])\n"
        "print(*(stub.stub_name(i).decode() for i in range(stub.stub_count())))\n"
        "ctypes.CDLL(sys.argv[2])\n"
        "print(stub.stub_count(), stub.stub_load(sys.argv[3].encode()))\n"
    )
    paths = [str(path) for path in (built.stub, built.registering, built.loadable)]
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["SnapKVSelect SnapStreamGather", "2 0"]


def test_registering_plugin_library_needs_one_tensorrt_symbol(built: Built) -> None:
    command = ["nm", "-D", "--undefined-only", str(built.registering)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in listed.splitlines()]
    assert [name for name in names if "nvinfer" in name or "Plugin" in name] == [
        "getPluginRegistry"
    ]


@pytest.mark.parametrize("name", ["SnapKVSelect", "SnapStreamGather"])
def test_plugin_attributes_are_those_of_the_onnx_function(registry: Registry, name: str) -> None:
    assert name in registry.names()
    assert sorted(registry.fields(name)) == sorted(function(name).attribute)


@pytest.fixture
def select(registry: Registry) -> Iterator[Plugin]:
    plugin = registry.create("SnapKVSelect", SELECT | VOTE)
    assert plugin, registry.messages()
    yield plugin
    plugin.destroy()


@pytest.fixture
def gather(registry: Registry) -> Iterator[Plugin]:
    plugin = registry.create("SnapStreamGather", GATHER)
    assert plugin, registry.messages()
    yield plugin
    plugin.destroy()


def select_inputs(dtype: torch.dtype = torch.float32, length: int = 40) -> list[Tensor]:
    query, key = random((1, 4, 3, 16), dtype, 0, 3.0), random((1, 2, 64, 16), dtype, 1)
    return [query, key, torch.tensor([length])]


def gather_inputs(length: int = 40) -> list[Tensor]:
    key, value = (random((1, 2, 64, 16), torch.float32, seed) for seed in (2, 3))
    kept = torch.tensor([[[2, 5, 9], [3, 4, 20]]])
    return [key, value, torch.tensor([length]), kept]


def test_cloned_attached_and_deserialized_select_plugins_equal_the_onnx_function(
    select: Plugin,
) -> None:
    inputs = select_inputs()
    (expected,) = call_body("SnapKVSelect", inputs, SELECT | {"K": [SELECT["K"]]}, VOTE)
    assert select.configure([*inputs, expected], 3)
    for how in ("clone", "attach", "deserialize"):
        plugin, kept = select.another(how), torch.full_like(expected, -77)
        assert plugin.run(inputs, [kept]) == 0
        assert torch.equal(kept, expected), how
        plugin.destroy()


@pytest.mark.parametrize("stage", VOTE)
def test_select_plugin_options_survive_serialization(registry: Registry, stage: str) -> None:
    """Each option changes the kept positions, before and after serialization."""
    other = {"softmax": "causal", "vote": "sum-squares", "pool": "max", "group": "max"}
    kept = {}
    for name, options in {"default": VOTE, "other": VOTE | {stage: other[stage]}}.items():
        plugin = registry.create("SnapKVSelect", SELECT | options)
        assert plugin, registry.messages()
        copy = plugin.another("deserialize")
        for seed in range(8):
            query, key = random((1, 4, 3, 16), torch.float32, seed, 3.0), select_inputs()[1]
            outs = [torch.full((1, 2, 6), -77) for _ in range(2)]
            inputs = [query, key, torch.tensor([60])]
            assert plugin.run(inputs, [outs[0]]) == copy.run(inputs, [outs[1]]) == 0
            assert torch.equal(*outs)
            kept[name, seed] = outs[0].tolist()
        plugin.destroy()
        copy.destroy()
    assert any(kept["default", seed] != kept["other", seed] for seed in range(8))


def test_cloned_attached_and_deserialized_gather_plugins_equal_the_onnx_function(
    gather: Plugin,
) -> None:
    inputs = gather_inputs()
    expected = call_body("SnapStreamGather", inputs, GATHER)
    assert gather.configure([*inputs, *expected], 4)
    for how in ("clone", "attach", "deserialize"):
        plugin, present = gather.another(how), [torch.full_like(one, 7) for one in expected]
        assert plugin.run(inputs, present) == 0
        assert all(torch.equal(*pair) for pair in zip(present, expected, strict=True)), how
        plugin.destroy()


@pytest.mark.parametrize(
    ("dtype", "code"), [(torch.float32, 0), (torch.float16, 1), (torch.bfloat16, 7)]
)
def test_plugin_output_types_and_shapes_follow_the_inputs(
    select: Plugin, gather: Plugin, dtype: torch.dtype, code: int
) -> None:
    assert select.outputs(select_inputs(dtype), 1) == [(8, [1, 2, 6])]
    key, value, length, kept = gather_inputs()
    inputs = [key.to(dtype), value.to(dtype), length, kept]
    assert gather.outputs(inputs, 2) == [(code, [1, 2, 12, 16])] * 2


def test_plugins_accept_only_linear_tensors_of_supported_types(
    select: Plugin, gather: Plugin
) -> None:
    length = torch.tensor([1])
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensors = [described(one) for one in (*select_inputs(dtype), length)]
        assert all(select.supports(position, tensors, 3) for position in range(4))
        cache = described(torch.zeros(1, 1, 1, 1, dtype=dtype))
        tensors = [cache, cache, described(length), described(length), cache, cache]
        assert all(gather.supports(position, tensors, 4) for position in range(6))
    query, key, _ = select_inputs()
    narrow = length.to(torch.int32)
    wrong = [query.to(torch.int64), key.half(), narrow, narrow]
    for position, tensor in enumerate(wrong):
        tensors = [described(one) for one in (query, key, length, length)]
        tensors[position] = described(tensor)
        assert not select.supports(position, tensors, 3)
    assert not select.supports(0, [described(query, format_=1)] * 4, 3)


def without(attributes: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if key != name}


REFUSED = {
    "'L_sink' is missing": without(SELECT | VOTE, "L_sink"),
    "'group' is missing": without(SELECT | VOTE, "group"),
    "'L_sinks' is unknown": SELECT | VOTE | {"L_sinks": 1},
    "'L_sink' is below 0": SELECT | VOTE | {"L_sink": -1},
    "'L_recent' is below 1": SELECT | VOTE | {"L_recent": 0},
    "'K' is below 1": SELECT | VOTE | {"K": 0},
    "'K' has 2 values, not 1": SELECT | VOTE | {"K": [1, 2]},
    "'pool_kernel' is not [1, P]": SELECT | VOTE | {"pool_kernel": [2, 5]},
    "'pool_kernel' has 1 values, not 2": SELECT | VOTE | {"pool_kernel": 5},
    "'scale' is not one float32": SELECT | VOTE | {"scale": 1},
    "'scale' is not above 0": SELECT | VOTE | {"scale": 0.0},
    "'softcap' is below 0": SELECT | VOTE | {"softcap": -1.0},
    "'softmax' is 'all'; choose from candidates, causal": SELECT | VOTE | {"softmax": "all"},
    "'vote' is not a string": SELECT | VOTE | {"vote": 3},
}


@pytest.mark.parametrize("message", REFUSED)
def test_select_plugin_refuses_a_bad_attribute_with_a_message(
    registry: Registry, message: str
) -> None:
    registry.messages()
    assert registry.create("SnapKVSelect", REFUSED[message]) is None
    error = registry.messages()
    assert error.startswith("error: snapexport: SnapKVSelect 'test': attribute ")
    assert message in error


def test_gather_plugin_refuses_missing_and_unknown_attributes(registry: Registry) -> None:
    assert registry.create("SnapStreamGather", {"L_sink": 2}) is None
    assert registry.create("SnapStreamGather", GATHER | {"K": 3}) is None
    assert "'K' is unknown; known are L_sink, L_recent" in registry.messages()


def test_plugins_refuse_bad_shapes_with_a_message(
    registry: Registry, select: Plugin, gather: Plugin
) -> None:
    query, key, length = select_inputs()
    out = torch.zeros(1, 2, 6, dtype=torch.int64)
    registry.messages()
    for tensors, message in [
        ([query[:, :3], key, length, out], "do not go together"),
        ([query[..., :8], key, length, out], "do not go together"),
        ([query[0], key, length, out], "query_window is [4, 3, 16], not [1, H, W, D]"),
        ([query, key.repeat(2, 1, 1, 1), length, out], "key is [2, 2, 64, 16]"),
        ([query, key, length[0], out], "prompt_length is []"),
        ([query, key.half(), length, out], "differ in type"),
        ([query, key, length.int(), out], "must be int64"),
        ([query[..., :12], key[..., :12], length, out], "head dimension is 12"),
        ([query.repeat(1, 1, 3, 1), key, length, out], "L_obs is 9"),
        ([query, key[:, :, :5], length, out], "L_recent is 7"),
    ]:
        assert not select.configure(tensors, 3)
        assert message in registry.messages()
    key, value, length, kept = gather_inputs()
    for inputs, message in [
        ([key, value[:, :, 1:], length, kept], "value is [1, 2, 63, 16], not as key"),
        ([key, value, length, kept[:, :1]], "topk_positions is [1, 1, 3], not [1, 2, K]"),
        ([key[:, :, :5], value[:, :, :5], length, kept], "L_recent is 7"),
    ]:
        assert not gather.configure([*inputs, key, value], 4)
        assert message in registry.messages()
        assert gather.run(inputs, [key, value]) != 0
        registry.messages()
    assert not gather.configure([key, value], 1)
    assert "SnapStreamGather has 4 inputs and 2 outputs, not 1 and 1" in registry.messages()
