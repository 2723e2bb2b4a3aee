"""Tells along which axis ranks divide a weight.

    heads         queries, keys and values by rows, the output by columns
    MLP, experts  each cut inside: gates and ups by rows, downs by columns
    vocabulary    the head by rows; the embedding by columns, so that a rank looks up every token
    every rank    norms, routers, and what makes latents (MLA), which all heads read; kv_b_proj too
                  where decode is parallel over the batch, under a name of its own

Names modules as transformers does, and no architecture.
"""

_BY_ROWS = frozenset(
    ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "lm_head")
)
_BY_COLUMNS = frozenset(("o_proj", "down_proj", "embed_tokens"))
_OF_EXPERTS = {"gate_up_proj": 1, "gate_up": 1, "up_proj": 1, "up": 1, "down_proj": 2, "down": 2}
"""Stacks [E,2I,H] or [E,I,H], and [E,H,I], by transformers' names and by the trace's."""

_WHOLE = "whole"


def axis_of(name: str) -> int | None:
    """The axis along which a weight is cut; None: every rank has the whole."""
    *_, module, attribute = name.split(".")
    if module == "experts":
        return _OF_EXPERTS.get(attribute)
    if module in _BY_ROWS:
        return 0
    # A bias is added to what all ranks have summed up, so every rank has all of it.
    return 1 if module in _BY_COLUMNS and attribute == "weight" else None


def name_of_whole(name: str) -> str:
    """The name of a weight that a rank has whole beside its part."""
    stem, _, attribute = name.rpartition(".")
    return f"{stem}.{_WHOLE}.{attribute}"


def stored_name(name: str) -> str:
    """The name that the checkpoint has for a weight, whole or a part."""
    return name.replace(f".{_WHOLE}.", ".")
