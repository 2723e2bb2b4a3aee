"""Model types of transformers whose tiny configs are elsewhere, or that are judged by defaults."""

from typing import Any

HELD = {
    "deepseek_v2": "deepseek-v2",
    "deepseek_v3": "deepseek-v3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3-moe",
}
"""Model types whose tiny configs are in `checkpoints.py`, by the names there."""

OTHERS: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 8}},
    "gemma4_assistant": {
        "text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 8,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
    },
    "reformer": {"is_decoder": True, "hidden_size": 768, "axial_pos_embds_dim": [256, 512]},
}
"""What configs of further model types need, beside their defaults, to be judged."""
