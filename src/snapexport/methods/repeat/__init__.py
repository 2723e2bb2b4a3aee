"""The queries of the whole prompt vote, which is fed a second time (KVzip, arXiv:2505.23416)."""
