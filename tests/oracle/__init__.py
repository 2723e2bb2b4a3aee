"""An oracle for the built graphs: transformers with its full cache, masked to what a build keeps.

Nothing here knows how the graphs are made. `checkpoints` writes random models, `masked` computes
their answers, `raw` runs a build by its contract alone, `cases` makes the builds, and `compare`
holds both against each other.
"""
