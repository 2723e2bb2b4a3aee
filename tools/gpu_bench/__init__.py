"""Speed on a GPU: see `python -m tools.gpu_bench --help` and docs/gpu.md."""
