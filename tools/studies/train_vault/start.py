"""Makes the vault's model, with first weights that lean towards looking things up.

Retrieval takes two layers: one that tells each token which tokens came before it, and one
that looks for a place with the same history and copies what stands there. From purely
random weights a small model is slow and unsure to find this pair, so the first weights
lean that way; everything is trained from there.
"""

from __future__ import annotations

import math

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaAttention

HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 32
# The fastest rotary planes tell neighbours apart; the slow ones do not blur with distance.
SHARP_PLANES, SHARPNESS = 5, 4.5
FIRST_SLOW_PLANE = 6
HISTORY_SIZE, MATCHING_SIZE, COPYING_SIZE, MIXING_SIZE = 0.3, 2.0, 0.15, 0.1
# Without noise the heads of a group would be and stay the same.
NOISE_SIZE = 0.5


def build_model(
    tokenizer: PreTrainedTokenizerFast, width: int, layers: int, longest: int
) -> LlamaForCausalLM:
    """Make an untrained model with the weights `prepare` starts from."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_SIZE,
        initializer_range=0.1,
        max_position_embeddings=longest,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    prepare(model)
    return model


@torch.no_grad()
def prepare(model: LlamaForCausalLM) -> None:
    """Lean the first layer towards gathering and the last one towards looking up."""
    config = model.config
    common = torch.randn(config.hidden_size) * config.initializer_range
    model.model.embed_tokens.weight += common
    frame = _frame(config, common)
    read = frame[0] @ torch.linalg.qr(torch.randn(config.hidden_size, config.hidden_size))[0]
    read -= torch.outer(read @ common, common) / (common @ common)
    _look_back(model.model.layers[0].self_attn, config, common)
    _gather(model.model.layers[0].self_attn, read, frame)
    _look_up(model.model.layers[-1].self_attn, read, frame)
    for layer in model.model.layers:
        layer.mlp.down_proj.weight *= MIXING_SIZE


def _frame(config: LlamaConfig, common: torch.Tensor) -> list[torch.Tensor]:
    """Make for each head a slot of the stream, apart from the others and the common part.

    Only the slow planes of a slot are used, so that comparing does not blur.
    """
    size, heads = HEAD_SIZE, HEADS
    slow = [place for place in range(size) if place % (size // 2) >= FIRST_SLOW_PLANE]
    columns = torch.cat(
        [common[:, None], torch.randn(config.hidden_size, heads * len(slow))], dim=1
    )
    basis = torch.linalg.qr(columns)[0].T[1:]
    slots = []
    for head in range(heads):
        slot = torch.zeros(size, config.hidden_size)
        slot[slow] = basis[head * len(slow) : (head + 1) * len(slow)]
        slots.append(slot)
    return slots


def _look_back(attention: LlamaAttention, config: LlamaConfig, common: torch.Tensor) -> None:
    """Let the heads look one, two, three and four tokens back.

    The embeddings share a component, which the heads turn into a query and a key that
    agree, after the rotation, at the wanted distance.
    """
    size = HEAD_SIZE
    seen = common / common.norm() * math.sqrt(config.hidden_size / 2)
    for head in range(KV_HEADS):
        _answer(attention.k_proj.weight[head * size : (head + 1) * size], seen, _turned(size, 0))
    for head in range(HEADS):
        rows = attention.q_proj.weight[head * size : (head + 1) * size]
        _answer(rows, seen, _turned(size, head + 1))


def _gather(attention: LlamaAttention, read: torch.Tensor, slots: list[torch.Tensor]) -> None:
    """Let each head write what it sees into its own slot."""
    attention.v_proj.weight.copy_(read.repeat(KV_HEADS, 1))
    attention.o_proj.weight.copy_(HISTORY_SIZE * torch.cat(slots).T)


def _look_up(attention: LlamaAttention, read: torch.Tensor, slots: list[torch.Tensor]) -> None:
    """Seek the place after the query's own token, or after its last two, and copy it."""
    size, groups = HEAD_SIZE, HEADS // KV_HEADS
    for head in range(HEADS):
        rows, group = slice(head * size, (head + 1) * size), head // groups
        source = slice(group * size, (group + 1) * size)
        attention.q_proj.weight[rows] *= NOISE_SIZE
        attention.q_proj.weight[rows] += MATCHING_SIZE * (slots[0] if head else read)
        attention.k_proj.weight[source] = MATCHING_SIZE * slots[min(group, 1)]
        attention.o_proj.weight[:, rows] = COPYING_SIZE * attention.v_proj.weight[source].T


def _answer(weight: torch.Tensor, seen: torch.Tensor, wanted: torch.Tensor) -> None:
    """Change a projection so that it maps one direction to the wanted vector."""
    weight += torch.outer(wanted - weight @ seen, seen) / (seen @ seen)


def _turned(size: int, back: int) -> torch.Tensor:
    """Make a vector in the fastest rotary planes, turned back by some positions."""
    angles = back * 1e4 ** (-torch.arange(SHARP_PLANES) / (size // 2))
    vector = torch.zeros(size)
    vector[:SHARP_PLANES] = SHARPNESS * angles.cos()
    vector[size // 2 : size // 2 + SHARP_PLANES] = -SHARPNESS * angles.sin()
    return vector
