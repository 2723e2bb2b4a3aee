"""Checkpoints of random fp32 weights, seeded: speed depends on shapes alone."""

import shutil
from pathlib import Path
from typing import Any, Literal

Name = Literal["small", "1b"]

SHAPES: dict[Name, dict[str, Any]] = {
    "small": {  # 125 M parameters; the heads of Llama-3-8B in a quarter of its width
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "1b": {  # Llama-3.2-1B's, from its config.json
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
}
COMMON: dict[str, Any] = {
    "max_position_embeddings": 262144,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEED = 0


def make(name: Name, directory: Path) -> Path:
    """The checkpoint's directory; made where it is missing."""
    out = directory / name
    if not out.is_dir():
        unfinished = directory / f"{name}.partial"
        shutil.rmtree(unfinished, ignore_errors=True)
        _write(SHAPES[name] | COMMON, unfinished)
        unfinished.rename(out)
    return out


def _write(shape: dict[str, Any], directory: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    LlamaForCausalLM(LlamaConfig(**shape)).float().save_pretrained(directory)
    _write_tokenizer(shape["vocab_size"], directory)


def _write_tokenizer(vocab_size: int, directory: Path) -> None:
    """A word for each token: nobody reads them, but some programs want a file."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{n}": n for n in range(3, vocab_size)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")),
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
    )
    tokenizer.save_pretrained(directory)
