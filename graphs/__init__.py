"""Surgery: traced graphs with markers in, finished graphs for a cache policy and a target out.

`surgery.py` runs the pipeline: policy passes (`passes/`) -> target passes (`targets/`) -> checks.
Works only on graphs: knows neither checkpoints nor torch.
"""
