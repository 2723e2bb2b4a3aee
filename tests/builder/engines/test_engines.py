"""From a build to its engines, over a FAKE TensorRT: calls, files, manifest and refusals."""

import itertools
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snapexport.builder.engines import EngineOptions, build_engines
from snapexport.builder.engines.folder import EngineFolder
from snapexport.contract.build_directory import Build
from snapexport.contract.manifest import Manifest
from snapexport.errors import UserError
from snapexport.files.whole import sha256_of
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.requests.llm import LLM
from snapexport.runtime.requests.request import SamplingParams
from tests.builder.engines.engine_builds import (
    GRAPHS,
    NAME,
    calls_to,
    entry_of,
    files,
    rebuild,
    refusal,
    start,
)
from tests.fakes import tensorrt
from tests.fakes.cuda import install
from tests.patience import PATIENCE


def test_every_graph_becomes_a_plan_recorded_in_the_manifest(
    fake_tensorrt: Any, own_build: Build
) -> None:
    assert build_engines(own_build, EngineOptions()) == NAME
    entry = entry_of(own_build)
    assert set(entry.graphs) == GRAPHS
    for graph, engine in entry.graphs.items():
        path = own_build.directory / engine.file
        assert engine.file == f"engines/{NAME}/{graph}.engine"
        assert (engine.size, engine.sha256) == (path.stat().st_size, sha256_of(path))
        assert engine.device_memory == 4096
    facts = entry.model_dump(exclude={"graphs"})
    assert facts == {
        "version": fake_tensorrt.__version__,
        "compute_capabilities": ["9.0"],
        "gpu": "NVIDIA Fake",
        "hardware_compatibility": "none",
        "version_compatible": False,
        "stripped": False,
        "refit": False,
        "optimization_level": 3,
        "workspace": None,
        "plugins": None,
    }
    beside = {f"{NAME}.log", f"{NAME}.timing.cache"}
    assert files(own_build) == {f"{NAME}/{graph}.engine" for graph in GRAPHS} | beside
    assert Manifest.read(own_build.directory).graphs == own_build.manifest.graphs


def test_engine_options_reach_tensorrts_builder_config(
    fake_tensorrt: Any, own_build: Build, plugin_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plugin_library.parent)
    name = build_engines(
        own_build,
        EngineOptions(
            graphs=("decode",),
            plugins=Path(plugin_library.name),
            hardware_compat="same-compute-capability",
            version_compatible=True,
            strip_weights=True,
            optimization_level=5,
            workspace=2**30,
        ),
    )
    assert name == "sm_90-version_compatible-stripped"
    (config,) = calls_to(fake_tensorrt, "build")
    assert {flag.name for flag in config._flags} == {
        *("STRIP_PLAN", "REFIT_IDENTICAL", "VERSION_COMPATIBLE")
    }
    assert config.hardware_compatibility_level.name == "SAME_COMPUTE_CAPABILITY"
    assert (config.builder_optimization_level, config._pools) == (5, {"WORKSPACE": 2**30})
    assert config.plugins_to_serialize == [str(plugin_library)]
    assert calls_to(fake_tensorrt, "network") == [
        1 << fake_tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    ]
    assert calls_to(fake_tensorrt, "parse") == [str(own_build.directory / "decode.onnx")]
    assert calls_to(fake_tensorrt, "load") == [True]
    entry = entry_of(own_build, name)
    assert (entry.stripped, entry.version_compatible, set(entry.graphs)) == (True, True, {"decode"})
    assert (entry.optimization_level, entry.workspace) == (5, 2**30)
    assert calls_to(fake_tensorrt, "plugins") == [("builder", str(plugin_library))], (
        "the engine brings its own"
    )
    assert entry.plugins is not None and entry.plugins.sha256 == sha256_of(plugin_library)
    assert not entry.needs_plugins


def test_refit_option_replaces_the_refit_identical_flag(
    fake_tensorrt: Any, own_build: Build
) -> None:
    options = EngineOptions(graphs=("decode",), strip_weights=True, refit=True)
    assert build_engines(own_build, options) == f"{NAME}-stripped-refit"
    (config,) = calls_to(fake_tensorrt, "build")
    assert {flag.name for flag in config._flags} == {"STRIP_PLAN", "REFIT"}
    assert entry_of(own_build, f"{NAME}-stripped-refit").refit


def test_plugin_library_is_copied_beside_the_plans(
    fake_tensorrt: Any, own_build: Build, plugin_library: Path, tmp_path: Path
) -> None:
    build_engines(own_build, EngineOptions(graphs=("compress",), plugins=plugin_library))
    plugins = entry_of(own_build).plugins
    assert plugins is not None
    copy = own_build.directory / plugins.file
    assert (copy.read_bytes(), copy.parent.name) == (plugin_library.read_bytes(), NAME)
    assert (plugins.size, plugins.sha256) == (copy.stat().st_size, sha256_of(copy))
    both = [("builder", str(plugin_library)), ("runtime", str(plugin_library))]
    assert calls_to(fake_tensorrt, "plugins") == both and entry_of(own_build).needs_plugins
    plugin_library.write_bytes(b"\x7fELF of another kind")
    assert f"plugins {plugins.file} (" in refusal(
        own_build, graphs=("decode",), plugins=plugin_library
    )
    other = plugin_library.rename(tmp_path / "libother.so")
    rebuild(own_build, graphs=("decode",), plugins=other, overwrite=True)
    left = {Path(file).name for file in files(own_build) if file.startswith(f"{NAME}/")}
    assert left == {"decode.engine", "libother.so"}


def test_plugin_library_without_plugins_is_refused(
    fake_tensorrt: Any, own_build: Build, tmp_path: Path
) -> None:
    (tmp_path / "text.so").write_text("text")
    message = refusal(own_build, plugins=tmp_path / "text.so")
    assert f"does not load {tmp_path}/text.so: no plugins in {tmp_path}/text.so" in message
    assert Manifest.read(own_build.directory) == own_build.manifest


def test_existing_plans_are_not_built_again(fake_tensorrt: Any, own_build: Build) -> None:
    build_engines(own_build, EngineOptions(graphs=("decode", "compress")))
    fake_tensorrt.calls.clear()
    rebuild(own_build)
    assert len(calls_to(fake_tensorrt, "parse")) == len(GRAPHS) - 2
    assert set(entry_of(own_build).graphs) == GRAPHS
    assert "has every engine already" in refusal(own_build)
    rebuild(own_build, graphs=("decode",), overwrite=True)
    assert set(entry_of(own_build).graphs) == GRAPHS


@pytest.mark.parametrize(
    "options", [{}, {"strip_weights": True}, {"version_compatible": True}, {"plugins": True}]
)
def test_runtime_runs_the_engines_that_were_built(
    fake_tensorrt: Any, own_build: Build, plugin_library: Path, options: dict[str, Any]
) -> None:
    if options.get("plugins"):
        options = {"plugins": plugin_library}
    build_engines(own_build, EngineOptions(**options))
    build, params = Build.open(own_build.directory), SamplingParams(4, ignore_eos=True)
    ours, theirs = (
        LLM.from_executor(open_executor(build, backend=backend)).generate([[5] * 40], params)
        for backend in ("tensorrt", "onnxruntime")
    )
    assert ours == theirs
    assert {"prefill", "compress", "decode"} <= set(calls_to(fake_tensorrt, "run"))


@pytest.mark.parametrize("other", [{"optimization_level": 1}, {"workspace": 2**30}])
def test_plans_of_other_options_are_not_mixed(
    fake_tensorrt: Any, own_build: Build, other: dict[str, int]
) -> None:
    build_engines(own_build, EngineOptions(graphs=("decode",)))
    ((option, value),) = other.items()
    former = {"optimization_level": 3, "workspace": None}[option]
    assert f"{option} {former}, not {value}" in refusal(own_build, graphs=("compress",), **other)
    rebuild(own_build, graphs=("compress",), overwrite=True, **other)
    assert set(entry_of(own_build).graphs) == {"compress"}


def test_engines_of_another_tensorrt_are_replaced_only_with_overwrite(
    fake_tensorrt: Any, own_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_engines(own_build, EngineOptions())
    monkeypatch.setattr(fake_tensorrt, "__version__", "11.5.0.1")
    assert "version 11.4.0.106, not 11.5.0.1" in refusal(own_build, graphs=("decode",))
    fake_tensorrt.planted["build_error"] = "out of luck"
    assert "out of luck" in refusal(own_build, graphs=("decode",), overwrite=True)
    assert set(entry_of(own_build).graphs) == GRAPHS, "a failure replaces nothing"
    fake_tensorrt.planted.clear()
    rebuild(own_build, graphs=("decode",), overwrite=True)
    entry = entry_of(own_build)
    assert (entry.version, set(entry.graphs)) == ("11.5.0.1", {"decode"})
    assert {file for file in files(own_build) if file.endswith(".engine")} == {
        f"{NAME}/decode.engine"
    }


@pytest.mark.parametrize("other_tensorrt", [False, True])
def test_manifest_names_only_whole_plans_at_every_moment_of_a_replacement(
    fake_tensorrt: Any, own_build: Build, monkeypatch: pytest.MonkeyPatch, other_tensorrt: bool
) -> None:
    """Each rename of a replacement fails once: nothing after it happens, as after a kill."""
    rename = Path.replace
    options = EngineOptions(graphs=("decode", "compress"), overwrite=True)
    for renames in itertools.count():
        build_engines(Build.open(own_build.directory), options)
        if other_tensorrt:
            monkeypatch.setattr(fake_tensorrt, "__version__", f"11.5.{renames}.0")
        left = iter([True] * renames)

        def replace(source: Path, target: Path, left: Iterator[bool] = left) -> None:
            if not next(left, False):
                raise OSError("killed")
            rename(source, target)

        monkeypatch.setattr(Path, "replace", replace)
        try:
            build_engines(Build.open(own_build.directory), options)
            break
        except OSError:
            monkeypatch.setattr(Path, "replace", rename)
        entry = Manifest.read(own_build.directory).engines.get(NAME)
        for engine in entry.graphs.values() if entry else ():
            assert sha256_of(own_build.directory / engine.file) == engine.sha256
    assert renames > 12


def test_engines_of_several_kinds_live_side_by_side(fake_tensorrt: Any, own_build: Build) -> None:
    build_engines(own_build, EngineOptions())
    rebuild(own_build, hardware_compat="ampere-plus")
    engines = Build.open(own_build.directory).manifest.engines
    assert set(engines) == {NAME, "ampere_plus"}
    measured = (own_build.directory / "engines" / f"{NAME}.timing.cache").read_bytes()
    assert measured.count(b"+") == 2 * len(GRAPHS), "both share one timing cache"
    assert engines["ampere_plus"].hardware_compatibility == "ampere_plus"


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        (
            {"parse_error": "no importer"},
            "decode.onnx: TensorScatter '/layers.0/scatter' in SnapKVSelect: no importer (and 1 m",
        ),
        (
            {"build_error": "no implementation"},
            "of decode: no implementation (and 1 other error)",
        ),
        ({"no_plan": "out of memory"}, "an engine of decode but does not load it: out of memory"),
        ({"not_aliased": 1}, "present.0.key does not share the memory of past_key_values.0.key"),
        ({"other_shape": "logits"}, "logits of"),
    ],
)
def test_failed_engine_build_leaves_only_its_log_and_timing_cache(
    fake_tensorrt: Any, own_build: Build, planted: dict[str, Any], message: str
) -> None:
    fake_tensorrt.planted.update(planted)
    assert message in refusal(own_build, graphs=("decode",))
    assert Manifest.read(own_build.directory) == own_build.manifest
    assert files(own_build) <= {f"{NAME}.log", f"{NAME}.timing.cache"}
    assert not (own_build.directory / "engines" / NAME).exists()


def test_failed_engine_build_keeps_finished_plans_and_timings(
    fake_tensorrt: Any, own_build: Build
) -> None:
    build_engines(own_build, EngineOptions(graphs=("prefill",)))
    fake_tensorrt.planted["build_error"] = "no implementation"
    refusal(own_build, graphs=("decode",))
    assert set(entry_of(own_build).graphs) == {"prefill"}
    cache = own_build.directory / "engines" / f"{NAME}.timing.cache"
    assert cache.read_bytes() == fake_tensorrt.__version__.encode() + b"++"
    assert (
        "ERROR: no implementation" in (own_build.directory / "engines" / f"{NAME}.log").read_text()
    )


def test_engine_failure_is_not_blamed_on_an_earlier_graph(
    fake_tensorrt: Any, own_build: Build
) -> None:
    """Each graph has an error that TensorRT recovers from; the second engine does not load."""
    fake_tensorrt.planted["recovered"] = "of the first"

    class Planting:
        def stage(self, text: str) -> None:
            if text == "decode: reading the graph":
                fake_tensorrt.planted.update(recovered="of the second", no_plan="out of memory")

    with pytest.raises(UserError) as refused:
        build_engines(own_build, EngineOptions(graphs=("prefill", "decode")), Planting())
    assert refused.value.message.endswith("load it: out of memory")
    assert set(entry_of(own_build).graphs) == {"prefill"}


def test_stale_default_timing_cache_is_begun_anew(fake_tensorrt: Any, own_build: Build) -> None:
    cache = own_build.directory / "engines" / f"{NAME}.timing.cache"
    cache.parent.mkdir()
    cache.write_bytes(b"of another version")
    build_engines(own_build, EngineOptions(graphs=("decode",)))
    assert cache.read_bytes() == fake_tensorrt.__version__.encode() + b"+"


def test_stale_timing_cache_of_the_user_is_refused_and_kept(
    fake_tensorrt: Any, own_build: Build, tmp_path: Path
) -> None:
    cache = tmp_path / "fleet.cache"
    build_engines(own_build, EngineOptions(graphs=("decode",), timing_cache=cache))
    assert cache.read_bytes() == fake_tensorrt.__version__.encode() + b"+"
    cache.write_bytes(b"of another version")
    assert "is not of this GPU" in refusal(own_build, graphs=("prefill",), timing_cache=cache)
    assert cache.read_bytes() == b"of another version"


def test_engine_progress_names_graph_phase_and_step(fake_tensorrt: Any, own_build: Build) -> None:
    stages: list[str] = []

    class Listener:
        def stage(self, text: str) -> None:
            stages.append(text)

    build_engines(own_build, EngineOptions(graphs=("decode",)), Listener())
    assert stages[0] == "decode: reading the graph"
    assert stages[-2:] == ["decode: Timing kernels: 2 of 3", "decode: Timing kernels: 3 of 3"]


def test_engine_build_on_a_full_disk_raises_and_leaves_no_plan(
    fake_tensorrt: Any, own_build: Build
) -> None:
    """A limit on the size of files stands for the full disk: writing fails half-way."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            build_engines(own_build, EngineOptions(graphs=("decode",)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Manifest.read(own_build.directory) == own_build.manifest
    assert not (own_build.directory / "engines" / NAME).exists()


def test_only_one_process_builds_engines_at_a_time(fake_tensorrt: Any, own_build: Build) -> None:
    with EngineFolder(own_build.directory, "other").ours():
        assert "another process builds engines" in refusal(own_build)


Patch = pytest.MonkeyPatch
OBSTACLES: dict[str, tuple[Callable[[Patch, Build], object], str]] = {
    "another target": (
        lambda _, b: b.manifest.model_copy(update={"target": "portable"}).write(b.directory),
        "was built for portable, not for TensorRT",
    ),
    "an old TensorRT": (
        lambda patch, _: patch.setattr(tensorrt, "__version__", "10.14.1.48"),
        "TensorRT 10.14.1.48 is too old",
    ),
    "no GPU": (
        lambda patch, _: install(patch, driver=False),
        "CUDA finds no GPU: cudaErrorInsufficientDriver",
    ),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_engine_build_that_cannot_begin_is_refused(
    fake_tensorrt: Any, own_build: Build, monkeypatch: Patch, obstacle: str
) -> None:
    plant, message = OBSTACLES[obstacle]
    plant(monkeypatch, own_build)
    assert message in refusal(own_build)
    assert not (own_build.directory / "engines").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_engine_build_ends_soon_and_leaves_no_partial_plan(
    own_build: Build, number: signal.Signals
) -> None:
    process = start(own_build)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "Traceback" in errors) == (128 + number, False)
    assert files(own_build) == {f"{NAME}.log", f"{NAME}.timing.cache"}
    assert Manifest.read(own_build.directory) == own_build.manifest


def test_next_engine_build_removes_the_partial_files_of_a_killed_one(
    fake_tensorrt: Any, own_build: Build
) -> None:
    process = start(own_build)
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert any(file.endswith(".partial") for file in files(own_build))
    (own_build.directory / "engines" / f"{NAME}.timing.cache.partial").write_bytes(b"half")
    assert Manifest.read(own_build.directory) == own_build.manifest
    build_engines(own_build, EngineOptions(graphs=("decode",)))
    assert files(own_build) == {f"{NAME}/decode.engine", f"{NAME}.log", f"{NAME}.timing.cache"}
