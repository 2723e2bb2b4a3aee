"""What a cache costs in accuracy: tasks made on the spot, run through a build's graphs.

    tasks (what is asked) -> contestants (which caches) -> trials (answers) -> report, plots

Every cache is made from the build's own traces, so that a build with its baseline is all it takes.
"""
