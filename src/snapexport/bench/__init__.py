"""How fast a build runs, with the least time that this machine could take beside each number.

    options, plan -> rounds (contenders in turn, probes among them) -> samples
    samples, costs -> report (spreads, floors, ratios) -> results.json, plots

`costs`, `floors`, `plan`, `spread` and `report` are arithmetic and run nothing. `load/` is about a
server under many clients. Whatever can prefill and decode can join a run: see `contender`.
"""
