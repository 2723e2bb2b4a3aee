"""Measures speed beyond `snapexport bench`: experiments that make checkpoints and builds.

    experiments/      the measurements, a file each: a record of options and functions
    filled.py         systems with random caches, without prefill
    memory.py         what is measured in a process of its own, without export libraries
    deployments.py    starts a build as one process, or as Dynamo's workers
    simulation.py     follows rows between simulated workers; large_models.py has their sizes
    peers/            other libraries, a file each, run by their own interpreters
    page.py           writes tables into a page
    results/          what was measured, an experiment a file

Only `__main__.py`, which runs experiments by name, knows the command line.
"""
