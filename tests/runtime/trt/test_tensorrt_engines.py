"""Choice and loading of a build's engine, and refusals, over FAKES."""

import logging
import shlex
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest

from snapexport.cli.app import parser
from snapexport.contract.build_directory import Build
from snapexport.contract.engines import EngineEntry
from snapexport.errors import UserError
from snapexport.runtime.engine.open_executor import open_executor
from snapexport.runtime.ort.backend import OnnxRuntimeBackend
from snapexport.runtime.trt import entry as tensorrt_entry
from snapexport.runtime.trt.backend import TensorRtBackend
from snapexport.runtime.trt.engines import LOG
from snapexport.runtime.trt.entry import Machine, choose
from tests.fakes.cuda import FakeCuda
from tests.fakes.plans import ENTRY, LIBRARY, entry_of, file, install, with_engines

HERE = Machine("11.4.0.106", "9.0", "NVIDIA Fake")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return install(monkeypatch)


class Engines(Protocol):
    def __call__(self, entry: EngineEntry = ENTRY, **plan: Any) -> Build: ...


@pytest.fixture
def engines(gpu: FakeCuda, tiny_build: Build, tmp_path: Path) -> Engines:
    """A build with plans of these facts, on a GPU."""
    return lambda entry=ENTRY, **plan: with_engines(
        tiny_build, it=entry_of(tiny_build, tmp_path, entry, **plan)
    )


def changed(**changes: Any) -> EngineEntry:
    return ENTRY.model_copy(update=changes)


@pytest.mark.parametrize(
    ("entry", "obstacle"),
    [
        (changed(), None),
        (changed(gpu="NVIDIA Other"), None),
        (changed(compute_capabilities=["8.9"]), "is for compute capability 8.9"),
        (
            changed(compute_capabilities=["8.9"], hardware_compatibility="same_compute_capability"),
            "is for compute capability 8.9",
        ),
        (changed(compute_capabilities=["8.0"], hardware_compatibility="ampere_plus"), None),
        (changed(version="11.3.0.99"), "is of TensorRT 11.3.0.99"),
        (changed(version="11.3.0.99", version_compatible=True), None),
        (
            changed(version="11.10.0.1", version_compatible=True),
            "is of TensorRT 11.10.0.1, which is newer",
        ),
    ],
)
def test_an_engine_is_chosen_only_if_it_can_run_here(
    tiny_build: Build, entry: EngineEntry, obstacle: str | None
) -> None:
    build = with_engines(tiny_build, it=entry)
    if obstacle is None:
        assert choose(build, HERE) is entry
        return
    with pytest.raises(UserError, match="has no engine for NVIDIA Fake") as refusal:
        choose(build, HERE)
    assert refusal.value.message.endswith(f": it {obstacle}")
    assert f"`snapexport engine {build.directory} " in refusal.value.hint


def test_an_ampere_plus_engine_is_refused_on_turing(tiny_build: Build) -> None:
    build = with_engines(tiny_build, it=changed(hardware_compatibility="ampere_plus"))
    with pytest.raises(UserError, match="has no engine"):
        choose(build, Machine("11.4.0.106", "7.5", "NVIDIA T4"))


WEIGHTS: dict[str, dict[str, bool]] = {
    "plain": {},
    "refit": {"refit": True},
    "stripped": {"stripped": True},
}


def test_a_whole_engine_comes_before_one_that_lacks_a_plan(
    tiny_build: Build, tmp_path: Path
) -> None:
    whole = entry_of(tiny_build, tmp_path, changed(hardware_compatibility="ampere_plus"))
    engines = {name: engine for name, engine in whole.graphs.items() if name != "baseline-decode"}
    partial = changed(graphs=engines)
    build = with_engines(tiny_build, partial=partial, whole=whole)
    assert choose(build, HERE) is whole
    assert choose(build, HERE, ["prefill", "compress", "decode"]) is partial


def test_engines_for_this_gpu_come_first(tiny_build: Build) -> None:
    best_first = {
        "own": changed(),
        "portable": changed(version_compatible=True),
        "alike": changed(hardware_compatibility="same_compute_capability", gpu="NVIDIA Other"),
        "any": changed(hardware_compatibility="ampere_plus"),
        "other": changed(gpu="NVIDIA Other"),
    }
    best_first = {
        f"{name}, {weights}": entry.model_copy(update=options)
        for name, entry in best_first.items()
        for weights, options in WEIGHTS.items()
    }
    while best_first:
        backwards = dict(reversed(best_first.items()))
        name = next(iter(best_first))
        assert choose(with_engines(tiny_build, **backwards), HERE) is best_first.pop(name), name


def test_the_hint_is_a_complete_engine_command(tiny_build: Build, tmp_path: Path) -> None:
    entry = changed(
        version_compatible=True,
        stripped=True,
        refit=True,
        optimization_level=5,
        workspace=2**30,
        hardware_compatibility="ampere_plus",
        plugins=file(tmp_path / "my lib.so", b"x"),
    )
    text = tensorrt_entry.command(tiny_build, entry)
    assert text == (
        f"snapexport engine {tiny_build.directory} --hardware-compat ampere-plus "
        "--version-compatible --strip-weights --refit --optimization-level 5 "
        "--workspace 1073741824 "
        f"--plugins '{tmp_path}/my lib.so' --overwrite"
    )
    parsed = parser().parse_args(shlex.split(text)[1:])
    assert (parsed.refit, parsed.workspace, parsed.plugins) == (True, 2**30, tmp_path / "my lib.so")


def test_a_missing_plugin_library_has_to_be_named(engines: Engines, tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    build = engines(changed(plugins=file(library, LIBRARY)), plugins=["lib.so"])
    for spoil in (lambda: library.write_bytes(LIBRARY[:-1]), library.unlink):
        spoil()
        hint = refusal(build).hint
        assert "--plugins FILE --overwrite" in hint and "lib.so" not in hint


def refusal(build: Build, **options: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        open_executor(build, backend="tensorrt", **options)
    assert "`snapexport engine " in caught.value.hint
    return caught.value


def test_changed_engine_files_are_refused(engines: Engines, tmp_path: Path) -> None:
    build = engines()
    tensorrt_entry.verify(build)
    engine = tmp_path / "decode.engine"
    same_size = engine.read_bytes().replace(b"11.4", b"11.5")
    engine.write_bytes(same_size)
    with pytest.raises(UserError, match=r"decode\.engine was changed"):
        tensorrt_entry.verify(build)
    engine.write_bytes(same_size + b" ")
    assert f"has {len(same_size) + 1} bytes" in refusal(build).message
    engine.unlink()
    assert "decode.engine is missing" in refusal(build).message


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"tensorrt": "11.3.0.99"}, "TensorRT cannot load .*the version does not match"),
        ({"version_compatible": True}, "holds code, which is not allowed"),
        ({"plugins": ["lib.so"]}, "no creator of the plugin SnapKVSelect"),
        ({"aliases": False}, "does not write 'past_key_values.0.key' in place"),
        ({"shapes": {"input_ids": [9, 9]}}, r"\[9, 9\]\) for 'input_ids', the manifest says"),
    ],
)
def test_plans_that_are_not_what_the_manifest_says_are_refused(
    engines: Engines, plan: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        open_executor(engines(**plan), backend="tensorrt")


def test_a_plan_of_another_graph_is_refused(
    gpu: FakeCuda, tiny_build: Build, tmp_path: Path
) -> None:
    entry = entry_of(tiny_build, tmp_path)
    swapped = entry.graphs | {"decode": entry.graphs["prefill"]}
    build = with_engines(tiny_build, it=entry.model_copy(update={"graphs": swapped}))
    assert "the manifest says None" in refusal(build).message


def test_a_plan_that_was_not_built_is_named(
    gpu: FakeCuda, tiny_build: Build, tmp_path: Path
) -> None:
    entry = entry_of(tiny_build, tmp_path)
    some = {name: engine for name, engine in entry.graphs.items() if name != "baseline-decode"}
    build = with_engines(tiny_build, it=entry.model_copy(update={"graphs": some}))
    open_executor(build, backend="tensorrt")
    missing = refusal(build, baseline=True)
    assert "no engine of baseline-decode.onnx was built" in missing.message
    assert "--overwrite" not in missing.hint, "the others would be built again"


def test_version_compatible_plans_may_hold_host_code(engines: Engines) -> None:
    entry = changed(version="11.0.0.1", version_compatible=True)
    open_executor(engines(entry, tensorrt="11.0.0.1", version_compatible=True))


def test_stripped_plans_take_the_weights_of_their_graphs(engines: Engines) -> None:
    entry = changed(stripped=True)
    open_executor(engines(entry, stripped=True))
    message = refusal(engines(entry, stripped=True, refittable=False)).message
    assert message.endswith(".onnx: the weights don't fit")


def test_plugin_library_is_loaded_before_the_plans(engines: Engines, tmp_path: Path) -> None:
    open_executor(engines(changed(plugins=file(tmp_path / "lib.so", LIBRARY)), plugins=["lib.so"]))
    empty = changed(plugins=file(tmp_path / "empty.so", b""))
    assert "cannot load the plugins" in refusal(engines(empty, plugins=["lib.so"])).message


def test_version_compatible_plans_bring_their_plugins(engines: Engines, tmp_path: Path) -> None:
    """The file beside the plans is empty: loading it would fail."""
    entry = changed(version_compatible=True, plugins=file(tmp_path / "empty.so", b""))
    open_executor(engines(entry, version_compatible=True), backend="tensorrt")


@pytest.mark.parametrize("backend", ["tensorrt", None])
def test_a_gpu_that_fails_is_an_error_with_a_hint(engines: Engines, backend: str | None) -> None:
    with pytest.raises(UserError, match=r"TensorRT makes no context of .*: no room for") as refusal:
        open_executor(engines(context=False), backend=backend)
    assert refusal.value.message.startswith("the GPU failed while the build was loaded: ")
    assert "nvidia-smi" in refusal.value.hint
    assert ("--backend onnxruntime" in refusal.value.hint) is (backend is None)


def test_a_plan_that_does_not_load_is_in_the_log_and_its_hint_mentions_memory(
    engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    hint = refusal(engines(tensorrt="11.3.0.99")).hint
    assert hint.endswith("runs on the GPU: each engine copies the weights")
    assert caplog.record_tuples == [
        ("snapexport.tensorrt", logging.ERROR, "the version does not match")
    ]


def test_tensorrts_messages_do_not_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Python prints the warnings of a logger that has no handler."""
    assert any(isinstance(handler, logging.NullHandler) for handler in LOG.handlers)
    LOG.warning("a word")
    assert capsys.readouterr().err == ""


def test_tensorrt_without_a_driver_is_refused(
    monkeypatch: pytest.MonkeyPatch, engines: Engines
) -> None:
    install(monkeypatch, driver=False)
    with pytest.raises(UserError, match="no GPU that it can use: cudaErrorInsufficientDriver"):
        open_executor(engines(), backend="tensorrt")


def test_a_full_gpu_is_refused_and_everything_is_freed(
    monkeypatch: pytest.MonkeyPatch, engines: Engines
) -> None:
    gpu = install(monkeypatch, memory=20_000)
    with pytest.raises(UserError, match=r"the GPU has no .* KiB left") as refusal:
        open_executor(engines(), backend="tensorrt")
    del refusal
    assert not gpu.device, "memory stayed allocated"


def test_without_tensorrt_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, engines: Engines
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(UserError, match="'tensorrt' is not installed") as refusal:
        open_executor(engines())
    assert "pip install 'snapexport[tensorrt]'" in refusal.value.hint
    assert "--backend onnxruntime" in refusal.value.hint


def test_a_tensorrt_package_without_its_library_is_refused(
    monkeypatch: pytest.MonkeyPatch, engines: Engines, tmp_path: Path
) -> None:
    (tmp_path / "tensorrt.py").write_text("raise OSError('libnvinfer.so.11: no such file')")
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"does not load: libnvinfer\.so\.11"):
        open_executor(engines())


def test_the_default_backend_is_tensorrt_only_for_builds_with_engines(
    tiny_build: Build, engines: Engines
) -> None:
    """TensorRT where there are engines, ONNX Runtime where there are none or it is requested."""
    onnxruntime = (
        open_executor(tiny_build),
        open_executor(with_engines(tiny_build)),
        open_executor(engines(), backend="onnxruntime", threads=1),
    )
    assert {type(one.backend) for one in onnxruntime} == {OnnxRuntimeBackend}
    assert isinstance(open_executor(engines()).backend, TensorRtBackend)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            {"backend": "cuda"},
            "no backend 'cuda'",
            "choose from onnxruntime, onnxruntime-cuda, openvino, tensorrt",
        ),
        ({"threads": 2}, "--threads 2 is not supported with --backend tensorrt", "leave it out"),
        (
            {"prepack": True},
            "a prepacked copy of the weights is not supported",
            "--backend onnxruntime",
        ),
    ],
)
def test_unknown_backends_and_cpu_settings_on_a_gpu_are_refused(
    engines: Engines, options: Any, message: str, hint: str
) -> None:
    with pytest.raises(UserError, match=message) as refusal:
        open_executor(engines(), **options)
    assert hint in refusal.value.hint


def test_an_engine_for_elsewhere_is_not_run_on_the_cpu_in_silence(
    engines: Engines,
) -> None:
    with pytest.raises(UserError, match="has no engine for") as refusal:
        open_executor(engines(changed(compute_capabilities=["8.0"])))
    assert "`snapexport engine " in refusal.value.hint
    assert "--backend onnxruntime" in refusal.value.hint


def test_a_build_for_another_target_is_refused_by_tensorrt(
    gpu: FakeCuda, tiny_build: Build
) -> None:
    with pytest.raises(UserError, match="built for onnxruntime, not for TensorRT") as refusal:
        open_executor(tiny_build, backend="tensorrt")
    assert "--target tensorrt" in refusal.value.hint
    with pytest.raises(UserError, match="has no TensorRT engines"):
        open_executor(with_engines(tiny_build), backend="tensorrt")
