"""Reads a checkpoint's directory: its configs, and the file and offset of each tensor.

Reads headers, never a weight. `open_checkpoint` takes GGUF files too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from snapexport.errors import UserError
from snapexport.exporter.read import folders
from snapexport.exporter.read.families import require_known
from snapexport.exporter.read.folders import (
    CONFIG,
    GENERATION_CONFIG,
)
from snapexport.exporter.read.number_types import with_types
from snapexport.exporter.read.shards import Absent, read_shards
from snapexport.files.safetensors import TensorSpan
from snapexport.files.untrusted import CONFIG_BYTES, read_object

if TYPE_CHECKING:
    from snapexport.exporter.read.gguf.header import GgufHeader
    from snapexport.exporter.weights.tensor_file import Tensor

MODELOPT_CONFIG = "hf_quant_config.json"
QUANTIZATION = "quantization_config"
_OLDER = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_ORIGINAL = "start from the original checkpoint: `--weights int4` quantizes it"
_OF_MLX = {"bits", "group_size", "mode"}
_DOWNLOAD_AGAIN = "download the checkpoint again: the file is damaged or incomplete"


@dataclass(frozen=True)
class Checkpoint:
    """A local checkpoint. The spans' files are resolved: no symlinks are left.

    gguf: the file that `directory` was made of, which lasts as long as `folder` is referred to.
    left_out: what of it a build leaves out. absent: what it names and does not have.
    """

    directory: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: "Mapping[str, Tensor]"
    gguf: "GgufHeader | None" = None
    folder: "TemporaryDirectory[str] | None" = None
    left_out: tuple[str, ...] = ()
    absent: Absent = field(default_factory=Absent)

    @classmethod
    def of_directory(cls, path: Path) -> "Checkpoint":
        """Read configs and tensor headers. Raises UserError for what is missing or broken."""
        folders.require_files(path)
        if not (path / CONFIG).is_file():
            raise folders.without_config(path)
        opened = cls.of_configs(path, {})
        require_known(opened.config)
        found = read_shards(path)
        notes = *opened.left_out, *folders.left_out(path), *found.left_out
        try:
            return _dequantize(
                replace(opened, tensors=found.tensors, absent=found.absent, left_out=notes)
            )
        except UserError:
            if found.absent:
                raise found.absent.error() from None
            raise

    @classmethod
    def of_configs(cls, directory: Path, tensors: "Mapping[str, Tensor]") -> "Checkpoint":
        """The configs of a directory with tensors from anywhere."""
        generation = directory / GENERATION_CONFIG
        config, changed = with_types(_with_quantization(_read(directory / CONFIG), directory))
        generating, more = with_types(_read(generation) if generation.exists() else {})
        notes = [
            f"{name}: read {', '.join(fields[:3])}" + (", ..." if len(fields) > 3 else "")
            for name, fields in ((CONFIG, changed), (GENERATION_CONFIG, more))
            if fields
        ]
        return cls(directory, config, generating, tensors, left_out=tuple(notes))

    @property
    def source(self) -> Path:
        """The path that the user named."""
        return self.gguf.file if self.gguf else self.directory


def _with_quantization(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    """A config with the quantization that is written elsewhere.

    ModelOpt writes it beside the config, older versions of compressed-tensors and MLX under another
    name, and some tools into the config of the text part.
    """
    if isinstance(mlx := config.get("quantization"), dict) and "bits" in mlx:
        return config | {QUANTIZATION: mlx | {"quant_method": "mlx"}}
    given = config.get(QUANTIZATION)
    if isinstance(given, dict) and not any(given.values()):
        given, config = None, config | {QUANTIZATION: None}
    names = given if isinstance(given, dict) else {}
    if "bits" in names and all(name in _OF_MLX or "." in name for name in names):
        return config | {QUANTIZATION: names | {"quant_method": "mlx"}}
    if given is not None:
        return config
    if (beside := directory / MODELOPT_CONFIG).is_file():
        return config | {QUANTIZATION: {"quant_method": "modelopt", **_read(beside)}}
    if isinstance(older := config.get("compression_config"), dict):
        return config | {QUANTIZATION: older | {"quant_method": "compressed-tensors"}}
    text = config.get("text_config")
    found = text.get(QUANTIZATION) if isinstance(text, dict) else None
    return config if found is None else config | {QUANTIZATION: found}


def read_config(directory: Path) -> dict[str, Any]:
    """config.json as it is written. Raises UserError."""
    return _read(directory / CONFIG)


def _read(path: Path) -> dict[str, Any]:
    return read_object(path, CONFIG_BYTES, _DOWNLOAD_AGAIN, lenient=True)


def _dequantize(stored: Checkpoint) -> Checkpoint:
    """With the weights that its tensors are parts of, and 64 bits narrowed to 32."""
    from snapexport.exporter.weights.readers import contradictions, history, read_quantization
    from snapexport.exporter.weights.tensor_file import Narrowed

    stored = _with_older_quantization(stored)
    found = read_quantization(stored.config)
    spans = {name: one for name, one in stored.tensors.items() if isinstance(one, TensorSpan)}
    wide = {name: Narrowed(one) for name, one in spans.items() if one.dtype == "F64"}
    if found is None:
        return replace(stored, tensors={**stored.tensors, **wide})
    tensors = found.tensors(spans)
    notes = [*stored.left_out, *found.left_out, *contradictions(tensors)]
    if tensors == spans:
        notes.append(f"{QUANTIZATION} says {found.kind}, and no tensor is quantized")
    tensors |= {name: one for name, one in wide.items() if name in tensors}
    return replace(
        stored, tensors=tensors, left_out=(*notes, *history(stored.config[QUANTIZATION]))
    )


def _with_older_quantization(stored: Checkpoint) -> Checkpoint:
    """With the quantization that only its tensors show, or that is written beside the config."""
    from snapexport.exporter.weights.readers import format_of

    found = format_of(stored.tensors)
    if found and not found[0].is_read:
        raise UserError(
            f"the weights are quantized in the format {found[0].name}, as the tensor {found[1]} "
            "shows, which is not read",
            _ORIGINAL,
        )
    if stored.config.get(QUANTIZATION) is not None or found is None:
        return stored
    (kind, tensor), config = found, {"quant_method": found[0].by_tensors}
    for name, method in _OLDER.items():
        if (beside := stored.directory / name).is_file():
            read, _ = with_types({QUANTIZATION: _read(beside)})
            config = {"quant_method": method, **read[QUANTIZATION]}
    if not config["quant_method"]:
        raise UserError(
            f"the weights are quantized in the format {kind.name}, as the tensor {tensor} shows, "
            f"and {CONFIG} has no {QUANTIZATION}",
            f"download {CONFIG} again, or {' or '.join(_OLDER)}, if the checkpoint has one; or "
            f"{_ORIGINAL}",
        )
    return replace(stored, config=stored.config | {QUANTIZATION: config})
