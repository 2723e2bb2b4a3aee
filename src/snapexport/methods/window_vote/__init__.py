"""The queries of a prompt's last tokens vote (SnapKV, arXiv:2404.14469)."""
