"""Placeholder operators that passes replace. A finished graph holds none of them.

    trace::LatentAttention
      first pass: chooses its form
    -> trace::Attention
      policy pass: chooses where keys and values are kept
    -> cache::CacheAttention | cache::PromptAttention
      target pass: chooses the operators
    -> ONNX operators

Inputs of attention markers: query [B,H,C,D], key and value [B,Hkv,C,D] (keys after RoPE), and for
gpt-oss as last one sink [H], a further score of each head, whose share goes to no value. Output:
[B,C,H,D]. Attributes:
- `layer` and `scale`;
- `window`: position i attends to i - window < j <= i, as in transformers. 0: to all j <= i;
- `chunk`, in traces, where it is not 0: position i attends to i - i mod chunk <= j <= i (Llama 4).
  Passes make masks of it;
- `softcap`: scores s become softcap * tanh(s / softcap) before the softmax (Gemma 2). 0.0: none;
- `latent`: 0, or the form of latent attention (MLA, `passes/latents.py`). Then key is the latents
  c_kv [B,1,C,r], value their RoPE part k_rope [B,1,C,d]. 1: absorbed, with queries [B,H,C,r+d] and
  an output [B,C,H,r]. 2: expanded, with queries [B,H,C,n+d], two more inputs, key_up [H,n,r] and
  value_up [H,r,v], and an output [B,C,H,v].
"""

TRACE_DOMAIN = "snapexport.trace"
CACHE_DOMAIN = "snapexport.cache"

ATTENTION = "Attention"
"""trace: (query, key, value[, more]) -> output. Causal attention to the past and the chunk."""

LATENT_ATTENTION = "LatentAttention"
"""trace: (query [B,H,C,n+d], c_kv [B,1,C,r], k_rope [B,1,C,d], key_up [H,n,r], value_up [H,r,v])
-> output [B,C,H,v]. Attributes `layer` and `scale`. Causal attention of queries to the keys
[key_up c_kv, k_rope], and to values c_kv value_up."""

CACHE_ATTENTION = "CacheAttention"
"""cache: (query, key, value, past_key, past_value [B,Hkv,S,D], slot, valid_length int64 [B]
[, sink | , key_up, value_up]) -> (output[, present_key, present_value]).

Writes the C new rows at cache slot `slot`; row i then attends to the first valid_length - C + 1 + i
cache slots. In the place of valid_length a marker may have a mask, bool [B,1,C,S], true where
attended to. Without present outputs the past holds these rows already. `appends` = 1: slot + C =
valid_length always, so cache slots are positions, and a window is possible. `valid_only` = 1: the
operators must not read cache slots >= valid_length."""

PROMPT_ATTENTION = "PromptAttention"
"""cache: (query, key, value[, more]) -> output. Causal attention inside a chunk that is a whole
prompt."""

CAUSAL_CONV = "CausalConv"
"""trace: (x [B,D,C], weight [D,1,k][, bias [D]]) -> output [B,D,C]. Each channel's convolution over
a position and the k - 1 before it. Attribute `layer`."""

LINEAR_ATTENTION = "LinearAttention"
"""trace: (query, key, value, decay[, beta]) -> output, from a state of zeros.
cache: (query [B,C,G,dk], key [B,C,G,dk], value [B,C,H,dv], decay [B,C,H] or [B,C,H,dk], beta
[B,C,H] or nothing, past_state [B,H,dk,dv]) -> (output [B,C,H,dv], present_state [B,H,dk,dv]), all
float32. Attributes `layer` and `scale`. Value head h reads query and key head h // (H/G).

For each token, with S' = exp(decay) S, by row where decay has dk of them, and u = value, or with
beta u = beta (value - S'^T key): S = S' + key u^T, and output = scale * S^T query. decay is <= 0.
Tokens whose key, beta and decay are 0 leave the state as it is."""

EXPERTS = "Experts"
"""trace: (hidden_states [N,H], index int64 [N,k], weights [N,k], gate_up [E,2I,H], down [E,H,I]
[, gate_up_bias [E,2I], down_bias [E,H]]) -> output [N,H]. The weighted sum of the chosen experts'
MLPs. Rows 2i of gate_up are gates, rows 2i + 1 ups. Attributes `alpha`, `beta`, `limit` (0.0:
none), `activation` and `gated`: an expert computes f(gate) * (up + beta), of gates and ups that are
clipped to the limit. f is `swish`, gate * sigmoid(alpha * gate), or one of the other functions in
functions/experts.py. (1, 0, none) of swish is SiLU's gate; gpt-oss has others. Experts that are not
gated have up [E,I,H] in the place of gate_up, and compute f(up)."""

SWISH = "swish"

BLOCK_EXPERTS = "BlockExperts"
"""trace: as EXPERTS, with three inputs each in the places of gate_up and down, in the layout of
exporter/weights/forms/parts.py: integers, scales, and zeros or nothing. Attributes `gate_up_bits`,
`down_bits` and `block_size`. Only builds with weights of integers have this marker and the next
two."""

ALL_REDUCE = "AllReduce"
"""trace: (x) -> the sum of all ranks' x. Attribute `ranks`. Only builds with --tensor-parallel
have this marker and the next one."""

ALL_GATHER = "AllGather"
"""trace: (x) -> all ranks' x, joined along the axis `axis` in the order of the ranks. Attributes
`ranks` and `axis`."""

ALL_TO_ALL = "AllToAll"
"""trace: (x [ranks*n,...]) -> [ranks*n,...]: the n rows at r * n go to rank r, and those of rank r
come to r * n. Attribute `ranks`. Only builds with --data-parallel-attention have this marker."""

BLOCK_MATMUL = "BlockMatMul"
"""trace: (x [...,K], integers, scales, zeros, minima, order) -> x @ W^T [...,N], attributes `N`,
`K`, `bits`, `block_size`, and `exact` where x is not to be rounded. W's parts are in the layout of
exporter/weights/forms/parts.py; what W has not is left out."""

BLOCK_GATHER = "BlockGather"
"""trace: (indices int64 [...], integers, scales, zeros, minima) -> rows of W [...,K], attributes
`bits` and `block_size`."""
