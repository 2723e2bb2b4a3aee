"""Compiles the prescribed forms of answers, by llguidance, and follows them token by token.

    compiler    `Grammars`: compiles and keeps those of an LLM
    library     calls llguidance; as a process of its own it tries a grammar first
    schemas     walks JSON schemas, and closes their objects
    acceptable  drops what a lenient schema says and llguidance refuses
    grammar     a compiled grammar, and a request's place in it

The runtime knows a grammar by the protocol in `structured_outputs`.
"""
