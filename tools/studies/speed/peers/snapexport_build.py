"""A build of snapexport."""

import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snapexport.contract.graph_options import GraphOptions
    from snapexport.contract.manifest import Quantization
    from snapexport.files.dtypes import DType
    from tools.studies.speed.peers.process import Scene, Variant

PACKAGES = ("snapexport", "onnxruntime", "openvino")


def variants(scene: "Scene") -> Iterator["Variant"]:
    """Each cache with each kind of weights, and SnapStream with OpenVINO.

    Prepacked: with a second copy of the weights, as the libraries have that rearrange theirs.
    Integer weights always are. Packed: that copy is a file, which both graphs map. In blocks: each
    block of a prompt is compressed as it comes. Caches of a dtype of their own are of
    fp32 builds only.
    """
    from snapexport.contract.graph_options import GraphOptions
    from tools.studies.speed.builds import IN_BLOCKS, IN_INT8, PLAIN

    caches = {
        "SnapStream": (scene.kv_budget, PLAIN, False),
        "SnapStream, prepacked": (scene.kv_budget, PLAIN, True),
        "SnapStream in fp16": (scene.kv_budget, GraphOptions(cache_dtype="fp16"), False),
        "SnapStream in int8": (scene.kv_budget, IN_INT8, False),
        "full": (None, PLAIN, False),
    }
    weights: dict[tuple[str, int], tuple[Quantization | None, DType]] = {
        ("fp32", 32): (None, "fp32"),
        ("fp16", 16): (None, "fp16"),
        ("int8", 8): ("int8", "fp32"),
        ("int4", 4): ("int4", "fp32"),
    }
    if scene.gguf:
        weights["the file's", 4] = ("keep", "fp32")
    for ((kind, bits), of), (cache, how) in product(weights.items(), caches.items()):
        (_, form, prepack), (_, dtype) = how, of
        if (not prepack or bits == 32) and (form == PLAIN or dtype == "fp32"):
            yield from _variant(scene, f"snapexport {kind}, {cache}", bits, of, how)
    for kind, bits in ("fp32", 32), ("int8", 8), ("int4", 4):
        name, how = f"snapexport {kind}, SnapStream, packed", caches["SnapStream"]
        yield from _variant(scene, name, bits, weights[kind, bits], how, packed=True)
        name, how = f"snapexport {kind}, SnapStream, OpenVINO in bf16", caches["SnapStream"]
        backend: dict[str, Any] = {"backend": "openvino", "precision": "bf16"}
        yield from _variant(scene, name, bits, weights[kind, bits], how, **backend)

    for (kind, bits), of in weights.items():
        how = scene.kv_budget, IN_BLOCKS, False
        yield from _variant(
            scene, f"snapexport {kind}, SnapStream in blocks", bits, of, how, prefill="blocks"
        )


def _variant(
    scene: "Scene",
    name: str,
    bits: int,
    weights: "tuple[Quantization | None, DType]",
    cache: "tuple[int | None, GraphOptions, bool]",
    packed: bool = False,
    **loaded: Any,
) -> Iterator["Variant"]:
    """The variant, with its build, if it is wanted. loaded: options of `make`."""
    from tools.studies.speed.peers.process import Variant

    budget, form, prepack = cache
    if bits in scene.bits and scene.wants(name):
        builds = scene.builds(*weights, "openvino" if "precision" in loaded else "onnxruntime")
        get = builds.packed if packed else builds.get
        build = get(max(scene.contexts), budget, form=form)
        options = {"build": str(build.directory.absolute()), "threads": scene.threads}
        options |= {"prepack": prepack, **loaded}
        yield Variant(name, bits, Path(sys.executable), __file__, options, scene.contexts)


def make(build: str, threads: int, prepack: bool = False, **loaded: Any) -> "Snapexport":
    """A build. loaded: options of `open_executor`."""
    sys.path.append(str(Path(__file__).parents[4]))  # a worker starts without the repository's root
    return Snapexport(Path(build), {"threads": threads, "prepack": prepack, **loaded})


class Snapexport:
    """Its executor without a scheduler, and requests of an `LLM`."""

    def __init__(self, build: Path, loaded: dict[str, Any]) -> None:
        from snapexport.contract.build_directory import Build
        from snapexport.measure.bench.systems import ExecutorSystem
        from snapexport.runtime.engine.open_executor import open_executor
        from snapexport.runtime.requests.llm import LLM

        self._build = Build.open(build)
        executor = open_executor(self._build, **{"backend": "onnxruntime"} | loaded)
        self._system, self._llm = ExecutorSystem(executor), LLM.from_executor(executor)
        self._context = 1

    @cached_property
    def _filled(self) -> Any:
        """With caches of random numbers."""
        from tools.studies.speed.filled import FilledSystem

        return FilledSystem(self._build, self._system.executor)

    def first_token(self, tokens: Sequence[int]) -> None:
        self._system.prefill(0, tokens)

    def idle(self) -> None:
        """Run the compress step that the first token did not wait for."""
        self._system.fill_slot()

    def fill(self, context: int) -> None:
        self._filled.refill()
        self._context = context

    def step(self) -> None:
        self._filled.step(self._context, 1)

    def stream(self, tokens: Sequence[int]) -> Iterator[int]:
        from snapexport.runtime.requests.request import SamplingParams

        room = self._system.executor.limits.positions - len(tokens)
        params = SamplingParams(max_tokens=room, ignore_eos=True)
        for delta in self._llm.stream(list(tokens), params):
            yield from delta.token_ids
