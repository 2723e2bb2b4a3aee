"""Measures speed and memory: systems take turns in one run, and times are compared to rooflines.

cases -> turns -> results (one JSON) -> tables, plots

speed.py, load.py       a given build, in this process or on a server
systems.py              the compared systems: the build's graphs and its baseline's
costs.py, turns.py      a build's least work, and the roofline that follows from it
tables.py, plots.py     show a results file
"""
