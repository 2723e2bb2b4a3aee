"""A checkpoint of a real model's shape whose weights are a hole in a file: no disk, no memory.

For measuring the export of models that do not fit on the machine. The shapes are those of the
configs published with Llama-3.1-8B and Llama-3.1-70B.
"""

import argparse
import json
import struct
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

LLAMA_3_1_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}

SHAPES: dict[str, dict[str, Any]] = {
    "8b": LLAMA_3_1_8B,
    "70b": LLAMA_3_1_8B
    | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
}


def write_sparse_checkpoint(directory: Path, shape: str = "8b") -> int:
    """config.json and a sparse bf16 model.safetensors; the bytes that the file pretends to have."""
    config = LlamaConfig(**SHAPES[shape], dtype="bfloat16")
    config.save_pretrained(directory)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    header: dict[str, object] = {}
    end = 0
    for name, tensor in model.state_dict().items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="8b", help="of Llama-3.1 (8b)")
    arguments = parser.parse_args()
    size = write_sparse_checkpoint(arguments.directory, arguments.shape)
    print(f"{size / 1e9:.1f} GB, all of it a hole")
