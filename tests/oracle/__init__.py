"""An oracle for the built graphs: transformers with its full cache, masked to what a build keeps.

Nothing here knows how the graphs are made. `checkpoints` writes random models, `masked` says what
they must answer, `raw` asks a build by its contract alone, `cases` makes the builds and compares.
"""
