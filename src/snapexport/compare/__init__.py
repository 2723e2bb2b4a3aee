"""Compares graphs with transformers: a small decoder before a build, whole builds by `diff`.

    check        a few layers of a checkpoint, which a build compares before it writes anything
    diff         whole sequences of tokens, with Polygraphy's verdicts
    model        loads transformers' own model of either; `reference` runs it
    loop         feeds graphs chunk by chunk and token by token, and does not trust the runtime
    difference   says how far apart logits are, and how far they may be
    votes        compares kept positions with a vote in float64
    sample       makes the small decoder, of the layers that `layers` chooses

Needs the build extra. Knows no build option and no command.
"""
