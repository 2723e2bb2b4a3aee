"""The performance tables of docs/performance.md: an experiment a file, all measured in one way.

    setup (checkpoint, builds) -> an experiment's cases -> turns -> report -> tables, plots

    turns.py         whoever is compared takes turns; medians, floors
    report.py        what an experiment has found: one JSON file
    checkpoint.py    random weights, made on the spot
    builds.py        builds of them, made once
    filled.py        an engine whose caches hold random numbers in place of a prompt
    context.py, equal_memory.py, overhead.py, naive.py, peers.py, peers1b.py, scale1b.py,
    host.py                 the experiments
    tables.py, plots.py     what is shown of their JSON
    top_tokens.py    a program of its own: steps with --top-tokens and without
    workers/         peers, each run by an interpreter of its own

It measures with snapexport.bench: probes, floors, spreads, memory.
"""
