"""Measures speed and memory: systems in turn in one run, each time beside its roofline.

    an experiment -> cases -> turns -> results (one JSON) -> tables, plots

    experiments/     what is measured, a file each
    systems.py       what is compared; filled.py: systems behind prompts that nobody prefilled
    roofline.py      the least time of a piece of work; costs.py counts a build's work
    load/            a server under many clients
    peers/           other libraries, a file each, run by interpreters of their own
    tables.py, plots.py     what is shown of a results file

Knows no command line but `__main__.py`, which runs experiments by name.
"""
