"""diff on TensorRT's engines: Polygraphy's own TrtRunner, over fakes of TensorRT and CUDA."""

import ctypes
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import polygraphy.cuda.cuda as polygraphy_cuda
import pytest
from cuda import pathfinder
from polygraphy.logger import G_LOGGER

from snapexport.cli.app import main
from snapexport.compare.loaders import find_cudart, on_tensorrt
from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from snapexport.runtime.trt.engines import open_engines
from tests.fakes import tensorrt
from tests.fakes.cuda import FakeCuda
from tests.fakes.plans import entry_of, in_bf16, install, with_engines


class PolygraphyCuda:
    """The functions of libcudart that Polygraphy calls, on the fake GPU."""

    def __init__(self, gpu: FakeCuda) -> None:
        self.gpu = gpu

    def create_stream(self) -> int:
        return int(self.gpu.cudaStreamCreateWithFlags(0)[1])

    def destroy_stream(self, ptr: int) -> None:
        self.gpu.cudaStreamDestroy(ptr)

    def stream_synchronize(self, ptr: int) -> None:
        self.gpu.cudaStreamSynchronize(ptr)

    def malloc(self, nbytes: int) -> int:
        return int(self.gpu.cudaMalloc(nbytes)[1])

    def free(self, ptr: int) -> None:
        self.gpu.cudaFree(ptr)

    def memcpy(self, dst: int, src: int, nbytes: int, kind: ctypes.c_int, stream_ptr: int) -> None:
        if kind.value == 1:  # from pageable memory: CUDA has taken the bytes when it returns
            data = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(src)).copy()
            self.gpu.put(stream_ptr, lambda: np.copyto(self.gpu.bytes_at(dst, nbytes), data))
        else:
            kinds = self.gpu.cudaMemcpyKind
            self.gpu.cudaMemcpyAsync(dst, src, nbytes, kinds(kind.value), stream_ptr)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    gpu = install(monkeypatch)
    monkeypatch.setattr(polygraphy_cuda, "G_CUDA", PolygraphyCuda(gpu))
    return gpu


@pytest.fixture
def build(tiny_build: Build, tmp_path: Path) -> Build:
    """A copy for TensorRT, with plans of the fake."""
    directory = tmp_path / "tiny.build"
    shutil.copytree(tiny_build.directory, directory)
    plain = Build.open(directory)
    made = with_engines(plain, sm_90=entry_of(plain, directory / "engines" / "sm_90"))
    made.manifest.write(directory)
    return Build.open(directory)


def diff(capsys: pytest.CaptureFixture[str], build: Build, *flags: str) -> Any:
    status = main(["diff", str(build.directory), "--json", "--steps", "3", *flags])
    assert status == 0
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_diff_compares_both_backends_in_one_report(
    gpu: FakeCuda, capsys: pytest.CaptureFixture[str], build: Build
) -> None:
    """The fake runs the graphs themselves: equal to the bit, also where the cache is compressed."""
    flags = ("--lengths", "12", "60", "--backends", "tensorrt,onnxruntime")
    rows = diff(capsys, build, *flags)["differences"]
    caches = ("full cache", "snapstream")
    names = [f"{cache} ({on})" for cache in caches for on in ("onnxruntime", "tensorrt")]
    assert {row["system"] for row in rows} == set(names)
    assert {row["reference"] for row in rows} == {"transformers", *names[:-1]}
    assert all(row["passed"] for row in rows if row["lossless"])
    for cache in caches:
        same = (f"{cache} (onnxruntime)", f"{cache} (tensorrt)")
        pairs = [row for row in rows if (row["reference"], row["system"]) == same]
        assert len(pairs) == 4
        assert max(row["distance"]["max_abs_error"] for row in pairs) < 1e-4
    costly = {(row["system"], row["output"]) for row in rows if not row["lossless"]}
    assert {output for _, output in costly} == {"decode.logits"}
    assert {runner for runner, _ in costly} == set(names[2:])


def test_diff_compares_tensorrt_without_onnxruntime(
    gpu: FakeCuda, capsys: pytest.CaptureFixture[str], build: Build
) -> None:
    rows = diff(capsys, build, "--lengths", "60", "--backends", "tensorrt")["differences"]
    assert {row["system"] for row in rows} == {"full cache (tensorrt)", "snapstream (tensorrt)"}


def test_tensorrt_loader_passes_bf16_unchanged(gpu: FakeCuda, build: Build, tmp_path: Path) -> None:
    """The fake can't calculate in bf16: caches come back as they went in, by TrtRunner's copies."""
    made = in_bf16(with_engines(build, sm_90=entry_of(build, tmp_path / "bf16", bf16=True)))
    rng = np.random.default_rng(0)
    feed = {
        spec.name: rng.normal(size=spec.shape).astype(np.dtype(spec.dtype))
        for spec in made.manifest.graphs["decode"].inputs
    }
    _, plans = open_engines(made)
    with on_tensorrt(plans.load)("decode") as infer:
        first, second = infer(feed), infer({name: array * 2 for name, array in feed.items()})
    for name in ("0.key", "1.value"):
        past, present = feed[f"past_key_values.{name}"], first[f"present.{name}"]
        assert present.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(present, past)
        np.testing.assert_array_equal(second[f"present.{name}"], past * 2)


def test_diff_refuses_a_missing_engine_file(
    gpu: FakeCuda, capsys: pytest.CaptureFixture[str], build: Build
) -> None:
    (build.directory / "engines" / "sm_90" / "decode.engine").unlink()
    assert main(["diff", str(build.directory), "--backends", "tensorrt"]) == 2
    assert "decode.engine is missing" in capsys.readouterr().err


@pytest.mark.parametrize("runners", ["cuda", "", "onnxruntime,cuda"])
def test_diff_refuses_other_backends(
    capsys: pytest.CaptureFixture[str], tiny_build: Build, runners: str
) -> None:
    assert main(["diff", str(tiny_build.directory), "--backends", runners]) == 2
    assert "choose from onnxruntime, tensorrt" in capsys.readouterr().err


def test_polygraphy_finds_cudart_in_a_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Polygraphy's own search, and cuda.pathfinder in the place of what a wheel brings."""
    library = tmp_path / "libcudart.so.13"
    loaded: list[str] = []
    monkeypatch.setattr(polygraphy_cuda, "G_CUDA", None)
    monkeypatch.setattr(polygraphy_cuda, "_find_cuda_lib_dirs", lambda: folders())
    monkeypatch.setattr(polygraphy_cuda.ctypes, "CDLL", lambda path: load(path))
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", lambda name: found(name))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/user")

    def folders() -> list[str]:
        return os.environ["LD_LIBRARY_PATH"].split(os.pathsep)

    def load(path: str) -> object:
        if not Path(path).is_file():
            raise OSError(f"{path}: cannot open shared object file")
        loaded.append(path)
        return object()

    def found(name: str) -> Any:
        if not library.is_file():
            raise pathfinder.DynamicLibNotFoundError(name)
        return SimpleNamespace(abs_path=str(library))

    with pytest.raises(UserError, match="finds no CUDA runtime library") as refused:
        find_cudart()
    assert "snapexport[tensorrt]" in refused.value.hint
    library.touch()
    find_cudart()
    assert loaded == [str(library)]
    assert os.environ["LD_LIBRARY_PATH"] == f"{tmp_path}:/of/the/user"
    find_cudart()
    assert len(loaded) == 1


def test_diff_reports_a_full_gpu(
    gpu: FakeCuda,
    capsys: pytest.CaptureFixture[str],
    build: Build,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def malloc(self: PolygraphyCuda, nbytes: int) -> int:
        G_LOGGER.critical("CUDA Error: 2")
        raise AssertionError

    monkeypatch.setattr(PolygraphyCuda, "malloc", malloc)
    assert main(["diff", str(build.directory), "--backends", "tensorrt"]) == 2
    error = capsys.readouterr().err
    assert "error: Polygraphy's runner failed on baseline-prefill: CUDA Error: 2" in error
    assert "nvidia-smi" in error and "Traceback" not in error


def test_the_fake_has_what_polygraphy_uses_of_tensorrt(gpu: FakeCuda) -> None:
    from polygraphy.backend.trt.runner import trt

    assert trt.__version__ == tensorrt.__version__
