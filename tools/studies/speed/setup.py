"""The record of an experiment, and what each is given: a place to work, a device, builds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snapexport.contract.graph_options import GraphOptions
from snapexport.files.dtypes import DType
from snapexport.measure.bench.results import Summary, Table
from snapexport.measure.bench.turns import Row
from snapexport.vault import CHECKPOINT
from tools.studies.speed import checkpoints
from tools.studies.speed.builds import Builds
from tools.studies.speed.device import Device
from tools.studies.speed.from_gguf import checkpoint_of
from tools.studies.speed.record import Results

QUICK_CHUNK = 64
BUNDLED = "vault"
"""The name of the bundled checkpoint, beside those of `checkpoints.SHAPES`."""

CUDA: dict[str, Any] = {"chunk": 2048, "top_tokens": 64}
"""Of builds for a GPU. top_tokens: no step waits for the logits of a whole vocabulary."""


@dataclass(frozen=True)
class Setup:
    """work: for checkpoints and builds. quick: the bundled checkpoint, at tiny sizes.

    dtype: of builds for a GPU. peers_python, kvpress_python, openvino_python, dynamo_python:
    interpreters that have them; None where there is none, and for Dynamo this one.
    """

    work: Path
    device: Device = field(default_factory=Device)
    quick: bool = False
    dtype: DType = "fp16"
    peers_python: Path | None = None
    kvpress_python: Path | None = None
    dynamo_python: Path | None = None
    openvino_python: Path | None = None

    @property
    def threads(self) -> int:
        return self.device.threads

    @property
    def form(self) -> GraphOptions:
        """How compressed caches are held: on a GPU attention reads valid slots alone."""
        return GraphOptions(decode_attention="valid" if self.device.name == "cuda" else None)

    def model(self, name: str = "small", dtype: DType = "fp32") -> Path:
        """The directory of one of our checkpoints by name, or of another by its path.

        A GGUF file is written as a checkpoint first.
        """
        if self.quick or name == BUNDLED:
            return CHECKPOINT
        if name.endswith(".gguf"):
            return checkpoint_of(Path(name), self.work / "checkpoints")
        if "/" in name:
            return Path(name)
        return checkpoints.make(name, dtype, self.work / "checkpoints")

    def builds(self, name: str = "small", **options: Any) -> Builds:
        """Of that checkpoint. weights "keep": of the GGUF file itself."""
        dtype: DType = options.pop("dtype", "fp32")
        if self.device.name == "cuda":
            dtype, options = self.dtype, CUDA | options
        if self.quick:
            options["chunk"] = QUICK_CHUNK
        model = Path(name) if options.get("weights") == "keep" else self.model(name, dtype)
        return Builds(model, self.work / "builds", dtype=dtype, **options)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """help: a line. cpu, quick, cuda: its options on the CPU, at tiny sizes, and on a GPU.

    Options are one frozen dataclass; cuda is None where it runs on the CPU alone. run: measures.
    tables: of a report. summary: rows computed from the sections. builds: makes its builds.
    """

    help: str
    cpu: Any
    quick: Any
    run: Callable[[Setup, Any, Results], None]
    tables: Callable[[Row], Iterable[Table]]
    cuda: Any = None
    summary: Summary | None = None
    builds: Callable[[Setup, Any], Iterable[object]] | None = None

    def options(self, device: str, quick: bool) -> Any:
        """Its options; None where it does not run on the device."""
        on_device = self.cuda if device == "cuda" else self.cpu
        return self.quick if quick and on_device else on_device
