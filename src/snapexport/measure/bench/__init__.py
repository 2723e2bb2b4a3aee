"""Measures speed and memory: systems take turns in one run, and times are compared to rooflines.

    an experiment -> cases -> turns -> results (one JSON) -> tables, plots

    experiments/     the measurements, a file each: a record of options and functions
    speed.py, load.py       a given build, alone or behind a server
    systems.py       the compared systems; filled.py: systems with random caches, without prefill
    deployments.py   starts a build as one process, or as Dynamo's workers
    simulation.py    follows rows between simulated workers; large_models.py has their sizes
    costs.py         counts a build's least work; turns.py makes a roofline of it
    peers/           other libraries, a file each, run by their own interpreters
    tables.py, plots.py     show a results file

Only `__main__.py`, which runs experiments by name, knows the command line.
"""
