"""Peers, each in a process of its own interpreter, driven in turn by `peers.py`.

Knows nothing of snapexport but in `ours`: the other interpreters don't have it. A worker reads a
line of JSON from standard input, does what it says, answers with a line, and sleeps until the next:

    {"do": "first_token", "tokens": [...]}   from a prompt to its first logits, with an empty cache
    {"do": "fill", "context": N}             stand behind N - 1 tokens; what it took is not a result
    {"do": "step"}                           one more token

The answer is {"seconds": ...}, or {"failed": ...} with the reason. The first one is about loading,
and has "versions".
"""
