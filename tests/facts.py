"""What plans and estimates read of a model, for models that no test makes."""

from typing import Any

from snapexport.contract.model_facts import ModelFacts


def model_facts(layers: int, **changes: Any) -> ModelFacts:
    """Of a small Llama with a full cache in each layer, but for the changes."""
    facts: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "kv_lora_rank": 0,
        "qk_nope_head_dim": 0,
        "v_head_dim": 0,
        "num_experts": 0,
        "attention_sinks": False,
        "vocab_size": 257,
        "max_position_embeddings": 1024,
        "sliding_window": [0] * layers,
        "eos_token_id": [2],
    }
    return ModelFacts(**facts | changes)
