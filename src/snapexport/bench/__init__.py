"""Measures speed and memory: systems take turns in one run, and times are compared to rooflines.

    an experiment -> cases -> turns -> results (one JSON) -> tables, plots

    experiments/     the measurements, a file each
    systems.py       the compared systems; filled.py: systems with random caches, without prefill
    roofline.py      the least time of a piece of work; costs.py counts a build's work
    load/            a server under many clients
    peers/           other libraries, a file each, run by their own interpreters
    tables.py, plots.py     show a results file

Only `__main__.py`, which runs experiments by name, knows the command line.
"""
