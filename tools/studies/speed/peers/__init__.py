"""Peers: other libraries, a plug-in each, run by processes of their own interpreters.

A plug-in is one file of this folder. It loads without snapexport, which its interpreter lacks:

    PACKAGES            names whose versions are kept
    variants(scene)     the systems that it takes part with (asked here, by snapexport)
    make(**options)     a `Peer` (called there, by worker.py)

    class Peer:
        def first_token(tokens)   from a prompt to its first logits, with an empty cache
        def fill(context)         stand behind context - 1 tokens, so that a step attends to context
        def step()                one more token
        def stream(tokens)        yield the likeliest tokens after a prompt, one by one

To add one: write the file, add it to PLUGINS, add its packages to peers.txt, or to a file of its
own if they ask for other versions.
"""

from types import ModuleType

from tools.studies.speed.peers import (
    genai,
    hugging_face,
    llama_cpp_peer,
    mobius_peer,
    openvino_peer,
    snapexport_build,
)

PLUGINS: tuple[ModuleType, ...] = (
    snapexport_build,
    openvino_peer,
    genai,
    mobius_peer,
    hugging_face,
    llama_cpp_peer,
)
