"""Keeps the positions with the highest votes, whoever gave these.

SelectVoted: largest float32 [1,Hkv,T], prompt_length int64 [1]
    -> topk_positions int64 [1,Hkv,K], ascending, -1 where unused.
Attributes: L_sink, L_recent (int), K (ints, [K]), pool_kernel (ints, [1, P]). As the end of
SnapKVSelect: pool, then keep the K highest of the eligible positions.
"""

from collections.abc import Mapping

from snapexport.graphs.functions.function import Function
from snapexport.graphs.functions.snapkv_select import CONSTANTS, ELIGIBLE, KEPT, pool_text

_SELECT = (
    """
<domain: "snapexport", opset_import: ["": 24]>
SelectVoted <L_sink, L_recent, K, pool_kernel> (largest, prompt_length) => (topk_positions)
{
"""
    + CONSTANTS
    + """
  # The eligible positions: s <= position < L - R, if L > S.
  T = Shape <start = 2, end = 3> (largest)
"""
    + ELIGIBLE
    + """
  eligibility = Cast <to = 1> (is_eligible)
  all_votes = Unsqueeze (largest, window_axis)
  votes = Mul (all_votes, eligibility)

  # --pool
%(pool)s
  group_vote = Squeeze (pooled, window_axis)"""
    + KEPT
)


def select_voted(choices: Mapping[str, str], pool_kernel: int) -> Function:
    """choices: by stage, of which `pool` counts."""
    return Function("SelectVoted", _SELECT % {"pool": pool_text(choices, pool_kernel)})
