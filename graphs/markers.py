"""Operators that stand for a decision not yet taken. None of them is left in a finished graph.

trace::Attention -- a policy pass says where keys and values are kept -->
cache::CacheAttention | cache::PromptAttention -- a target pass says with which operators --> ONNX.

All take query [B,H,C,D], key and value [B,Hkv,C,D] (keys after RoPE), give the attention's output
as [B,C,H,D], and have the attributes
- `layer` and `scale`;
- `window`: position i attends to i - window < j <= i alone, as in transformers. 0: to all j <= i;
- `softcap`: scores s become softcap * tanh(s / softcap) before the softmax (Gemma 2). 0.0: none.
"""

TRACE_DOMAIN = "snapexport.trace"
CACHE_DOMAIN = "snapexport.cache"

ATTENTION = "Attention"
"""trace: (query, key, value). Causal attention to the past and to the chunk itself."""

CACHE_ATTENTION = "CacheAttention"
"""cache: (query, key, value, past_key, past_value [B,Hkv,S,D], slot, valid_length int64 [B])
-> (output, present_key, present_value).

Writes the C new rows at `slot`, then row i attends to the first valid_length - C + 1 + i slots.
`appends` = 1 says that slot + C = valid_length always: the rows are written at the end, slots are
positions, and there may be a window. `valid_only` = 1 asks for operators that read no slot from
valid_length on."""

PROMPT_ATTENTION = "PromptAttention"
"""cache: (query, key, value). Causal attention inside one chunk that holds the whole prompt."""

BLOCK_MATMUL = "BlockMatMul"
"""trace: (x [...,K], packed uint8 [N,K/block_size,block_size/2], scales [N,K/block_size])
-> x @ W^T [...,N], attributes `N`, `K` and `block_size`. W's elements are 4 bits wide
(exporter/int4.py has the layout); there is one where a build has such weights."""
