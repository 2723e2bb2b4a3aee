"""From a build to its engines, over a FAKE TensorRT: what is asked, written, recorded, refused."""

import itertools
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.contract.files import sha256_of
from snapexport.contract.manifest import Manifest
from snapexport.engines import EngineOptions, build_engines
from snapexport.engines.folder import EngineFolder
from snapexport.runtime.llm import LLM
from snapexport.runtime.open_executor import open_executor
from snapexport.runtime.requests import SamplingParams
from tests.engines.asking import GRAPHS, NAME, entry_of, files, refusal, start
from tests.fakes.cuda import install


def test_every_graph_becomes_a_plan_that_the_manifest_vouches_for(fake: Any, made: Build) -> None:
    assert build_engines(made, EngineOptions()) == NAME
    entry = entry_of(made)
    assert set(entry.graphs) == GRAPHS
    for graph, engine in entry.graphs.items():
        path = made.directory / engine.file
        assert engine.file == f"engines/{NAME}/{graph}.engine"
        assert (engine.size, engine.sha256) == (path.stat().st_size, sha256_of(path))
        assert engine.device_memory == 4096
    facts = entry.model_dump(exclude={"graphs"})
    assert facts == {
        "tensorrt": fake.__version__,
        "compute_capability": "9.0",
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
    assert files(made) == {f"{NAME}/{graph}.engine" for graph in GRAPHS} | beside
    assert Manifest.read(made.directory).graphs == made.manifest.graphs


def test_what_tensorrt_is_asked_for(
    fake: Any, made: Build, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(library.parent)
    name = build_engines(
        made,
        EngineOptions(
            graphs=("decode",),
            plugins=Path(library.name),
            hardware_compat="same-compute-capability",
            version_compatible=True,
            strip_weights=True,
            optimization_level=5,
            workspace=2**30,
        ),
    )
    assert name == "sm_90-version_compatible-stripped"
    (config,) = fake.asked("build")
    assert {flag.name for flag in config._flags} == {
        *("STRIP_PLAN", "REFIT_IDENTICAL", "VERSION_COMPATIBLE")
    }
    assert config.hardware_compatibility_level.name == "SAME_COMPUTE_CAPABILITY"
    assert (config.builder_optimization_level, config._pools) == (5, {"WORKSPACE": 2**30})
    assert config.plugins_to_serialize == [str(library)]
    assert fake.asked("network") == [1 << fake.NetworkDefinitionCreationFlag.STRONGLY_TYPED]
    assert fake.asked("parse") == [str(made.directory / "decode.onnx")]
    assert fake.asked("load") == [True]
    entry = entry_of(made, name)
    assert (entry.stripped, entry.version_compatible, set(entry.graphs)) == (True, True, {"decode"})
    assert (entry.optimization_level, entry.workspace) == (5, 2**30)
    assert fake.asked("plugins") == [("builder", str(library))], "the engine brings its own"
    assert entry.plugins is not None and entry.plugins.sha256 == sha256_of(library)
    assert not entry.needs_plugins


def test_refit_is_for_other_weights(fake: Any, made: Build) -> None:
    options = EngineOptions(graphs=("decode",), strip_weights=True, refit=True)
    assert build_engines(made, options) == f"{NAME}-stripped-refit"
    (config,) = fake.asked("build")
    assert {flag.name for flag in config._flags} == {"STRIP_PLAN", "REFIT"}
    assert entry_of(made, f"{NAME}-stripped-refit").refit


def test_the_plugin_library_lies_beside_the_plans(
    fake: Any, made: Build, library: Path, tmp_path: Path
) -> None:
    build_engines(made, EngineOptions(graphs=("compress",), plugins=library))
    plugins = entry_of(made).plugins
    assert plugins is not None
    copy = made.directory / plugins.file
    assert (copy.read_bytes(), copy.parent.name) == (library.read_bytes(), NAME)
    assert (plugins.size, plugins.sha256) == (copy.stat().st_size, sha256_of(copy))
    both = [("builder", str(library)), ("runtime", str(library))]
    assert fake.asked("plugins") == both and entry_of(made).needs_plugins
    library.write_bytes(b"\x7fELF of another kind")
    assert f"plugins {plugins.file} (" in refusal(made, graphs=("decode",), plugins=library)
    other = library.rename(tmp_path / "libother.so")
    options = EngineOptions(graphs=("decode",), plugins=other, overwrite=True)
    build_engines(Build.open(made.directory), options)
    left = {Path(file).name for file in files(made) if file.startswith(f"{NAME}/")}
    assert left == {"decode.engine", "libother.so"}


@pytest.mark.parametrize(
    "options", [{}, {"strip_weights": True}, {"version_compatible": True}, {"plugins": True}]
)
def test_the_runtime_runs_what_was_built(
    fake: Any, made: Build, library: Path, options: dict[str, Any]
) -> None:
    """Graphs of the runtime's fake are those of the builder's: the plan names them."""
    if options.get("plugins"):
        options = {"plugins": library}
    build_engines(made, EngineOptions(**options))
    build, params = Build.open(made.directory), SamplingParams(max_tokens=4, ignore_eos=True)
    ours, theirs = (
        LLM.from_executor(open_executor(build, backend=backend)).generate([[5] * 40], params)
        for backend in ("tensorrt", "onnxruntime")
    )
    assert ours == theirs
    assert {"prefill", "compress", "decode"} <= set(fake.asked("run"))


def test_a_library_that_is_none_is_refused(fake: Any, made: Build, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("text")
    message = refusal(made, plugins=tmp_path / "text.so")
    assert f"does not load {tmp_path}/text.so: no plugins in {tmp_path}/text.so" in message
    assert Manifest.read(made.directory) == made.manifest


def test_what_is_there_is_not_built_again(fake: Any, made: Build) -> None:
    build_engines(made, EngineOptions(graphs=("decode", "compress")))
    fake.calls.clear()
    build_engines(Build.open(made.directory), EngineOptions())
    assert len(fake.asked("parse")) == len(GRAPHS) - 2
    assert set(entry_of(made).graphs) == GRAPHS
    assert "has every engine already" in refusal(made)
    build_engines(Build.open(made.directory), EngineOptions(graphs=("decode",), overwrite=True))
    assert set(entry_of(made).graphs) == GRAPHS


@pytest.mark.parametrize("other", [{"optimization_level": 1}, {"workspace": 2**30}])
def test_plans_of_other_options_are_not_mixed(
    fake: Any, made: Build, other: dict[str, int]
) -> None:
    build_engines(made, EngineOptions(graphs=("decode",)))
    ((option, value),) = other.items()
    former = {"optimization_level": 3, "workspace": None}[option]
    assert f"{option} {former}, not {value}" in refusal(made, graphs=("compress",), **other)
    options = EngineOptions(graphs=("compress",), overwrite=True, **other)
    build_engines(Build.open(made.directory), options)
    assert set(entry_of(made).graphs) == {"compress"}


def test_another_tensorrt_replaces_all_of_it_and_only_when_told(
    fake: Any, made: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_engines(made, EngineOptions())
    monkeypatch.setattr(fake, "__version__", "11.5.0.1")
    assert "tensorrt 11.4.0.106, not 11.5.0.1" in refusal(made, graphs=("decode",))
    fake.planted["build_error"] = "out of luck"
    assert "out of luck" in refusal(made, graphs=("decode",), overwrite=True)
    assert set(entry_of(made).graphs) == GRAPHS, "a failure replaces nothing"
    fake.planted.clear()
    build_engines(Build.open(made.directory), EngineOptions(graphs=("decode",), overwrite=True))
    entry = entry_of(made)
    assert (entry.tensorrt, set(entry.graphs)) == ("11.5.0.1", {"decode"})
    assert {file for file in files(made) if file.endswith(".engine")} == {f"{NAME}/decode.engine"}


@pytest.mark.parametrize("other_tensorrt", [False, True])
def test_at_every_moment_the_manifest_names_whole_plans(
    fake: Any, made: Build, monkeypatch: pytest.MonkeyPatch, other_tensorrt: bool
) -> None:
    """Each rename of a replacement fails once: nothing after it happens, as after a kill."""
    rename = Path.replace
    options = EngineOptions(graphs=("decode", "compress"), overwrite=True)
    for renames in itertools.count():
        build_engines(Build.open(made.directory), options)
        if other_tensorrt:
            monkeypatch.setattr(fake, "__version__", f"11.5.{renames}.0")
        left = iter([True] * renames)

        def replace(source: Path, target: Path, left: Iterator[bool] = left) -> None:
            if not next(left, False):
                raise OSError("killed")
            rename(source, target)

        monkeypatch.setattr(Path, "replace", replace)
        try:
            build_engines(Build.open(made.directory), options)
            break
        except OSError:
            monkeypatch.setattr(Path, "replace", rename)
        entry = Manifest.read(made.directory).engines.get(NAME)
        for engine in entry.graphs.values() if entry else ():
            assert sha256_of(made.directory / engine.file) == engine.sha256
    assert renames > 12


def test_engines_of_several_kinds_live_side_by_side(fake: Any, made: Build) -> None:
    for options in (EngineOptions(), EngineOptions(hardware_compat="ampere-plus")):
        build_engines(Build.open(made.directory), options)
    engines = Build.open(made.directory).manifest.engines
    assert set(engines) == {NAME, "ampere_plus"}
    measured = (made.directory / "engines" / f"{NAME}.timing.cache").read_bytes()
    assert measured.count(b"+") == 2 * len(GRAPHS), "they share what was measured on the GPU"
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
            "of decode: no implementation (after 1 other error)",
        ),
        ({"no_plan": "out of memory"}, "an engine of decode and does not load it: out of memory"),
        ({"not_aliased": 1}, "present.0.key does not share the memory of past_key_values.0.key"),
        ({"other_shape": "logits"}, "takes logits of"),
    ],
)
def test_what_tensorrt_refuses_leaves_no_trace_but_the_log(
    fake: Any, made: Build, planted: dict[str, Any], message: str
) -> None:
    fake.planted.update(planted)
    assert message in refusal(made, graphs=("decode",))
    assert Manifest.read(made.directory) == made.manifest
    assert files(made) <= {f"{NAME}.log", f"{NAME}.timing.cache"}
    assert not (made.directory / "engines" / NAME).exists()


def test_a_failure_keeps_what_was_finished_and_measured(fake: Any, made: Build) -> None:
    build_engines(made, EngineOptions(graphs=("prefill",)))
    fake.planted["build_error"] = "no implementation"
    refusal(made, graphs=("decode",))
    assert set(entry_of(made).graphs) == {"prefill"}
    cache = made.directory / "engines" / f"{NAME}.timing.cache"
    assert cache.read_bytes() == fake.__version__.encode() + b"++"
    assert "ERROR: no implementation" in (made.directory / "engines" / f"{NAME}.log").read_text()


def test_a_failure_is_not_blamed_on_an_earlier_graph(fake: Any, made: Build) -> None:
    """Each graph has an error that TensorRT recovers from; the second engine does not load."""
    fake.planted["recovered"] = "of the first"

    class Planting:
        def stage(self, text: str) -> None:
            if text == "decode: reading the graph":
                fake.planted.update(recovered="of the second", no_plan="out of memory")

    with pytest.raises(UserError) as refused:
        build_engines(made, EngineOptions(graphs=("prefill", "decode")), Planting())
    assert refused.value.message.endswith("load it: out of memory (after 1 other error)")
    assert set(entry_of(made).graphs) == {"prefill"}


def test_a_stale_timing_cache_of_ours_is_begun_anew(fake: Any, made: Build) -> None:
    cache = made.directory / "engines" / f"{NAME}.timing.cache"
    cache.parent.mkdir()
    cache.write_bytes(b"of another version")
    build_engines(made, EngineOptions(graphs=("decode",)))
    assert cache.read_bytes() == fake.__version__.encode() + b"+"


def test_a_stale_timing_cache_of_somebody_is_left_alone(
    fake: Any, made: Build, tmp_path: Path
) -> None:
    cache = tmp_path / "fleet.cache"
    build_engines(made, EngineOptions(graphs=("decode",), timing_cache=cache))
    assert cache.read_bytes() == fake.__version__.encode() + b"+"
    cache.write_bytes(b"of another version")
    assert "is not of this GPU" in refusal(made, graphs=("prefill",), timing_cache=cache)
    assert cache.read_bytes() == b"of another version"


def test_progress_names_graph_phase_and_step(fake: Any, made: Build) -> None:
    told: list[str] = []

    class Listener:
        def stage(self, text: str) -> None:
            told.append(text)

    build_engines(made, EngineOptions(graphs=("decode",)), Listener())
    assert told[0] == "decode: reading the graph"
    assert told[-2:] == ["decode: Timing kernels: 2 of 3", "decode: Timing kernels: 3 of 3"]


def test_a_full_disk_is_told_as_such(fake: Any, made: Build) -> None:
    """A limit on the size of files stands for the full disk: writing fails half-way."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            build_engines(made, EngineOptions(graphs=("decode",)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Manifest.read(made.directory) == made.manifest
    assert not (made.directory / "engines" / NAME).exists()


def test_only_one_builds_at_a_time(fake: Any, made: Build) -> None:
    with EngineFolder(made.directory, "other").ours():
        assert "another process builds engines" in refusal(made)


def test_a_graph_that_was_changed_is_refused(made: Build) -> None:
    (made.directory / "decode.onnx").write_bytes(b"other")
    with pytest.raises(UserError, match="was changed after the build"):
        Build.open(made.directory)


def test_graphs_for_another_engine_are_refused(fake: Any, made: Build) -> None:
    made.manifest.model_copy(update={"target": "portable"}).write(made.directory)
    assert "was built for portable, not for TensorRT" in refusal(made)


def test_an_old_tensorrt_is_refused(
    fake: Any, made: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "__version__", "10.14.1.48")
    assert "TensorRT 10.14.1.48 is too old" in refusal(made)
    assert not (made.directory / "engines").exists()


def test_no_gpu_is_told(fake: Any, made: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, driver=False)
    assert "CUDA finds no GPU: cudaErrorInsufficientDriver" in refusal(made)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_ends_soon_and_leaves_nothing_unfinished(
    made: Build, number: signal.Signals
) -> None:
    process = start(made)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in errors) == (128 + number, False)
    assert files(made) == {f"{NAME}.log", f"{NAME}.timing.cache"}
    assert Manifest.read(made.directory) == made.manifest


def test_what_a_killed_build_left_goes_with_the_next(fake: Any, made: Build) -> None:
    process = start(made)
    process.kill()
    process.communicate(timeout=20)
    assert any(file.endswith(".partial") for file in files(made))
    (made.directory / "engines" / f"{NAME}.timing.cache.partial").write_bytes(b"half")
    assert Manifest.read(made.directory) == made.manifest
    build_engines(made, EngineOptions(graphs=("decode",)))
    assert files(made) == {f"{NAME}/decode.engine", f"{NAME}.log", f"{NAME}.timing.cache"}
