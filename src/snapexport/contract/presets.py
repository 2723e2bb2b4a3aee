"""Presets of the policies: the SnapStream cache with some options fixed."""

from collections.abc import Mapping

from snapexport.contract.geometry import Policy

PRESETS: Mapping[Policy, Mapping[str, int | str]] = {
    "snapstream": {},
    # StreamingLLM (arXiv:2309.17453): sinks and ring alone.
    "streaming": {"K": 0},
    # SAGE-KV (arXiv:2503.08879): the last token decides, position by position.
    "sage": {"L_obs": 1, "pool_kernel": 1},
    # SnapKV (arXiv:2404.14469): only the newest are protected, and attention goes to all keys.
    "snapkv": {"L_sink": 0, "softmax": "causal"},
    "full": {},
}

PRESET_DEFAULTS: Mapping[Policy, Mapping[str, int | str]] = {
    # One query votes: other options would only weigh the heads of a group otherwise.
    "sage": {"softmax": "candidates", "vote": "sum"},
    # SnapKV's own code has a pool kernel of 5 or 7.
    "snapkv": {"pool_kernel": 7, "vote": "sum"},
}
"""A preset's defaults, from its paper."""
VOTE_FIELDS = ("vote", "pool", "softmax", "group", "budget", "vote_queries")
