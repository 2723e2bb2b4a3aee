"""Measures speed and memory: systems take turns in one run, and times are compared to rooflines.

plan -> turns -> results (one JSON, and tables)

plan.py, speed.py     a given build: a checked plan, an estimate, and what is measured
systems.py            the compared systems, and the memory of one in a process of its own
costs.py, probes.py   a build's least work, and the machine's rates: the roofline
results.py            a results file and its tables; measure/plots.py draws it
"""
