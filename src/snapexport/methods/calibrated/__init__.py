"""The mean query of other texts votes, measured before RoPE (TriAttention, arXiv:2604.04921)."""
