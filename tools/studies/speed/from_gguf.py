"""Writes a GGUF file as a checkpoint directory, by transformers' own reader.

Other libraries then run the very weights that the file has, dequantized.
"""

from pathlib import Path

from snapexport.builder.staging import staged
from snapexport.errors import UserError


def checkpoint_of(file: Path, directory: Path) -> Path:
    """The checkpoint's directory below `directory`, in fp32; made if missing. Raises UserError."""
    if not file.is_file():
        raise UserError(f"{file} is no file", "`make real-model` fetches SmolLM2's")
    out = directory / file.stem
    if not out.is_dir():
        with staged(out, overwrite=False) as unfinished:
            _write(file, unfinished)
    return out


def _write(file: Path, out: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # A model that transformers loads from GGUF counts as quantized, and can't be saved.
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_config(config)
    read = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)
    model.load_state_dict(read["tensors"], strict=False, assign=True)
    model.tie_weights()
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)
