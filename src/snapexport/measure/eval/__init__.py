"""Measures what a compressed cache costs in accuracy.

tasks -> samples -> requests -> grid -> records -> report

haystack, wordings, sample, tasks    long-context tasks
documents, requests, grid            what is asked, of which caches
systems, loaded_systems              the caches, and the builds that they are
side_by_side, hit_rate, run          run the grid; records keeps and sums up what comes of it
"""
