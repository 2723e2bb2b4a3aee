"""The small files of a checkpoint, and what a folder or file is that isn't a checkpoint.

A row in a table for each kind, with what to do. One table of the small files serves both ways to a
checkpoint: folders are read by it, and the Hub is asked for it. Reads names, and a few short files.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from snapexport.errors import UserError
from snapexport.exporter.read.unfinished import (
    error_of,
    find_unfinished,
    is_unfinished,
    require_finished,
)
from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.files.untrusted import (
    CONFIG_BYTES,
    INDEX_BYTES,
    TEMPLATE_BYTES,
    TOKENIZER_BYTES,
    read_bytes,
    read_object,
    repeated_keys,
)

CONFIG = "config.json"
SINGLE_FILE = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
PROCESSORS_TEMPLATE = "chat_template.json"
"""Where processors of images had it, as the one field of an object."""
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
COPIED = {
    CONFIG: CONFIG_BYTES,
    TOKENIZER: TOKENIZER_BYTES,
    TOKENIZER_CONFIG: CONFIG_BYTES,
    CHAT_TEMPLATE: TEMPLATE_BYTES,
    f"{MORE_TEMPLATES}/tool_use.jinja": TEMPLATE_BYTES,
    GENERATION_CONFIG: CONFIG_BYTES,
}
"""{name: the most bytes of it} of what a build has too."""
READ = COPIED | {
    PROCESSORS_TEMPLATE: TEMPLATE_BYTES << 1,
    SPECIAL_TOKENS_MAP: CONFIG_BYTES,
    ADDED_TOKENS: CONFIG_BYTES,
}
"""With those whose content goes into the copies of others."""
CONVERTIBLE = (
    "tekken.json",
    "tokenizer.model",
    "tiktoken.model",
    "spiece.model",
    "tokenizer.model.v3",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "qwen.tiktoken",
)
"""Tokenizers in other formats, of which transformers or its friends make a tokenizer.json."""
GGUF = ".gguf"
_SAFETENSORS = ".safetensors"
_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = 1 << 10
_MOST_NAMES = 1 << 12
_SHARD = re.compile(r".+-([0-9]{5})-of-([0-9]{5})\.safetensors")
ADAPTER = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_SAVE = (
    "write it with transformers: AutoModelForCausalLM.from_pretrained(FOLDER)"
    ".save_pretrained(ANOTHER)"
)
_ORIGINAL = "start from the original checkpoint, with config.json and model.safetensors"


@dataclass(frozen=True)
class Kind:
    """Files that show what a folder is: any of them, in it or one folder below."""

    files: tuple[str, ...]
    what: str
    hint: str


_KINDS = (
    Kind(("model_index.json",), "a pipeline of diffusers, which makes images", _ORIGINAL),
    Kind(
        ("manifest.json.sha256",),
        "a build already",
        "run it, for example with `snapexport generate`; --model takes the checkpoint",
    ),
    Kind(("genai_config.json",), "a model of onnxruntime-genai", _ORIGINAL),
    Kind(("openvino*.xml",), "a model of OpenVINO", _ORIGINAL),
    Kind(("*.engine", "rank0.engine", "*.plan"), "a TensorRT engine", _ORIGINAL),
    Kind(("*.onnx",), "an ONNX export", _ORIGINAL),
    Kind(("*.mlpackage", "*.mlmodel"), "a model of Core ML", _ORIGINAL),
    Kind(("*.nemo",), "a model of NeMo", "convert it to Hugging Face's layout first"),
    Kind(
        ("consolidated*.safetensors",),
        "weights in Mistral's own layout",
        "download model.safetensors and config.json of the same repository, or convert it with "
        "transformers' convert_mistral_weights_to_hf.py",
    ),
    Kind(
        ("consolidated*.pth", "params.json"),
        "weights in Meta's own layout",
        "name the folder with config.json, often the one above `original`, or convert it with "
        "transformers' convert_llama_weights_to_hf.py",
    ),
    Kind(("*.h5", "*.msgpack"), "weights of TensorFlow or Flax", _SAVE),
    Kind(
        _PICKLES,
        "weights as pickles, which can run code",
        f"only safetensors weights are read: {_SAVE}",
    ),
)


def require_files(path: Path) -> None:
    """Raise UserError for files that an incomplete copy has others in the place of.

    These are pointers of git-lfs, and links that lead nowhere.
    """
    folder = path if path.is_dir() else path.parent
    names = names_of(folder) if path.is_dir() else [path.name]
    wanted = (f"*{_SAFETENSORS}", f"*{GGUF}", SHARD_INDEX, *READ, *CONVERTIBLE)
    read = [name for name in names if any(fnmatch(name, one) for one in wanted)]
    links = [name for name in read if (folder / name).is_symlink()]
    if dangling := [name for name in links if not (folder / name).exists()]:
        raise UserError(
            f"{folder / dangling[0]} is a link to {(folder / dangling[0]).readlink()}, which is "
            "not there",
            "copy the folder with the files that its links name (`cp -rL`), or download it again",
        )
    require_finished(folder, [*names, *_controls(path)], {path.name, *READ, *read})
    pointers = [name for name in read if _is_pointer(folder / name)]
    if pointers:
        raise UserError(
            f"{folder} has pointers of git-lfs in the place of {len(pointers)} files, among them "
            f"{pointers[0]}",
            f"fetch the files: `git -C {folder} lfs pull`",
        )


def without_config(folder: Path) -> UserError:
    """The error of a folder without config.json."""
    names = names_of(folder)
    if part := find_unfinished(folder, names, CONFIG):
        return error_of(part, CONFIG, f"{folder} has no {CONFIG}")
    what, hint = _describe(folder, names)
    if not what and any(_SHARD.fullmatch(name) or name == "model.safetensors" for name in names):
        hint = f"download {CONFIG} of the same repository into it"
    said = f", and {what}" if what else ""
    return UserError(f"{folder} is not a checkpoint: it has no {CONFIG}{said}", hint)


def without_weights(folder: Path, name: str) -> UserError:
    """The error of a folder whose config.json has no weights. name: of the file that lacks."""
    names = names_of(folder)
    if part := find_unfinished(folder, names, name):
        return error_of(part, name, f"{folder} has no {name}")
    if SHARD_INDEX in names:
        return UserError(f"{folder} has no {name}", f"download {name} of the same repository")
    what, hint = _of_shards(names) or _of_other_weights(names) or _describe(folder, names)
    said = f", and {what}" if what else ""
    return UserError(f"{folder} has no {name}{said}", hint)


def without_adapter(folder: Path) -> UserError:
    """The error of a folder, or a path, that lacks a file of an adapter's two."""
    if not folder.is_dir():
        what = "a file" if folder.exists() else "not there"
        return UserError(
            f"{folder} is not an adapter: it is {what}",
            f"--adapter takes a folder of PEFT's, with {ADAPTER}, or a Hugging Face Hub id",
        )
    names = names_of(folder)
    lacks = ADAPTER_WEIGHTS if ADAPTER in names else ADAPTER
    inside = [folder / name for name in names if (folder / name / ADAPTER).is_file()]
    what, hint = "", f"point --adapter at a folder that peft's save_pretrained made, with {lacks}"
    if ADAPTER in names and "adapter_model.bin" in names:
        what = "the weights of adapter_model.bin are pickles, which can run code"
        hint = "load it with peft, and save it again: save_pretrained writes safetensors"
    elif "adapters.safetensors" in names:
        what, hint = "it is an adapter of MLX", "fuse it with mlx_lm.fuse, and name that as --model"
    elif inside:
        what, hint = "it has adapters inside", f"name one: --adapter {inside[-1]}"
    elif CONFIG in names and ADAPTER not in names:
        what, hint = "it is a whole checkpoint", f"build it without --adapter: --model {folder}"
    said = f": {what}" if what else ""
    return UserError(f"{folder} is not an adapter with {lacks}{said}", hint)


def require_of_hub(model: str, folder: Path, names: Iterable[str]) -> None:
    """Raise UserError for a repository of the Hub whose weights are of another kind.

    folder: what was downloaded of it. names: all of its files.
    """
    top = [name for name in names if "/" not in name]
    found = sorted(name for name in names if name.endswith(GGUF))
    if found:
        raise UserError(
            f"'{model}' has GGUF files on the Hub, and no model.safetensors",
            f"download one and name it: `hf download {model} {found[0]} --local-dir .`"
            + (f"; it has {len(found)}" if len(found) > 1 else ""),
        )
    if kind := _of_adapter(folder, top, model) or _of_kinds(top, [n.split("/")[-1] for n in names]):
        raise UserError(f"'{model}' has no model.safetensors on the Hub: {kind[0]}", kind[1])


def require_gguf(path: Path) -> None:
    """Raise UserError for a file that is known to be something else than a GGUF file."""
    if is_unfinished(path.name):
        raise error_of(path, path.stem, f"{path} is not whole")
    if path.suffix in (_SAFETENSORS, ".json"):
        raise UserError(
            f"{path} is one file of a checkpoint, and not a GGUF file",
            f"name its folder, which has {CONFIG} too: --model {path.parent}",
        )
    for kind in _KINDS:
        if any(fnmatch(path.name, one) for one in kind.files):
            raise UserError(f"{path} is not a GGUF file: it is {kind.what}", kind.hint)


def left_out(folder: Path) -> tuple[str, ...]:
    """Say that a build leaves out an adapter, which transformers with peft applies.

    And all but the last of keys that occur twice.
    """
    notes = [f"{one} twice: the last is read" for one in _repeated_keys_of(folder)]
    if (folder / ADAPTER).is_file():
        notes.append(f"left out: the LoRA adapter of {ADAPTER}; --adapter {folder} merges it")
    return tuple(notes)


def _repeated_keys_of(folder: Path) -> Iterator[str]:
    for name in (CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG, SHARD_INDEX):
        with suppress(UserError, OSError, ValueError, RecursionError):
            for key in repeated_keys(read_bytes(folder / name, INDEX_BYTES, "")):
                yield f"{name} has {key!r}"


def _describe(folder: Path, names: list[str]) -> tuple[str, str]:
    """Say what a folder is, with a hint. Nothing, and a general hint, if it is of no known kind."""
    for of_kind in (_of_adapter, _of_gguf, _of_hub_cache):
        if found := of_kind(folder, names):
            return found
    below = [name for sub in names for name in _below(folder / sub)]
    if found := _of_kinds(names) or _of_checkpoints_inside(folder, names) or _of_kinds(below):
        return found
    if not names:
        return "it is empty", "download the checkpoint into it"
    return "", "point --model at a directory made by `save_pretrained`"


def _of_kinds(*places: list[str]) -> tuple[str, str] | None:
    """The first kind of which there is a file, by the places in turn."""
    for names in places:
        for kind in _KINDS:
            found = [name for name in names if any(fnmatch(name, one) for one in kind.files)]
            if found:
                return f"it is {kind.what} ({found[0]})", kind.hint
    return None


def _of_adapter(folder: Path, names: list[str], own: str = "") -> tuple[str, str] | None:
    """own: what the user named, if it is not the folder."""
    if ADAPTER not in names:
        return None
    base: object = None
    with suppress(UserError, OSError):
        config = read_object(folder / ADAPTER, CONFIG_BYTES, "", lenient=True)
        base = config.get("base_model_name_or_path")
    known = base if isinstance(base, str) and base.isprintable() else ""
    of = f" of {known}" if known else ""
    named = shlex.quote(known) if known else "BASE"
    own = shlex.quote(own or str(folder))
    return (
        f"it is a LoRA adapter{of:.200}",
        f"name its base as the model: --model {named:.200} --adapter {own}",
    )


def _of_gguf(folder: Path, names: list[str]) -> tuple[str, str] | None:
    found = [n for n in names if n.endswith(GGUF) and not n.startswith("mmproj")]
    found = [name for name in found if not re.search("-0000[2-9]-of-|-000[1-9][0-9]-of-", name)]
    if not found:
        return None
    if len(found) == 1:
        return "it has a GGUF file", f"name the GGUF file itself: --model {folder / found[0]}"
    few = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
    return "it has GGUF files", f"name one of its {len(found)} GGUF files: {few}"


def _of_hub_cache(folder: Path, _: list[str]) -> tuple[str, str] | None:
    snapshots = folder if folder.name == "snapshots" else folder / "snapshots"
    found = sorted(path for path in _entries(snapshots) if (path / CONFIG).is_file())
    if not found:
        return None
    return "it is a folder of the Hub's cache", f"name a snapshot: --model {found[-1]}"


def _of_shards(names: list[str]) -> tuple[str, str] | None:
    shards = [match for name in names if (match := _SHARD.fullmatch(name))]
    if not shards:
        return None
    there, count = {int(shard[1]) for shard in shards}, int(shards[0][2])
    missing = sorted(set(range(1, min(count, _MOST_NAMES) + 1)) - there)
    what = f"no {SHARD_INDEX}, and {len(there)} of its {count} shards"
    index = f"download {SHARD_INDEX} of the same repository"
    lacking = f", and the shards that lack, from number {missing[0]} on" if missing else ""
    return what, index + lacking


def _of_other_weights(names: list[str]) -> tuple[str, str] | None:
    named = ("consolidated", "adapter", "optimizer", "training")
    found = [n for n in names if n.endswith(_SAFETENSORS) and not n.startswith(named)]
    if len(found) != 1:
        return None
    return f"it has {found[0]}", f"rename {found[0]} to model.safetensors, if it holds all weights"


def _of_checkpoints_inside(folder: Path, names: list[str]) -> tuple[str, str] | None:
    found = [folder / name for name in names if (folder / name / CONFIG).is_file()]
    if not found:
        return None
    many = f"{len(found)} checkpoints" if len(found) > 1 else "a checkpoint"
    return f"it has {many} inside", f"name {'one' if len(found) > 1 else 'it'}: --model {found[0]}"


def _controls(path: Path) -> list[str]:
    """Names of the files beside a GGUF file while it is downloaded."""
    return [] if path.is_dir() else names_of(path.parent)


def _below(folder: Path) -> list[str]:
    return names_of(folder) if folder.is_dir() else []


def names_of(folder: Path) -> list[str]:
    """A folder's names, of very many the first ones."""
    return sorted(path.name for path in _entries(folder))


def _entries(folder: Path) -> Iterable[Path]:
    with suppress(OSError):
        return list(islice(folder.iterdir(), _MOST_NAMES))
    return []


def _is_pointer(path: Path) -> bool:
    with suppress(UserError, OSError):
        return read_bytes(path, _POINTER_BYTES, "").startswith(_POINTER)
    return False
