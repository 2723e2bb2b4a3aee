"""Compiles the prescribed forms of answers, by llguidance, and follows them token by token.

    grammar     `Grammars`: compiles and keeps those of an LLM; a request's place in one
    library     calls llguidance; as a process of its own it tries a grammar first
    schemas     walks JSON schemas, closes their objects, and drops what llguidance refuses

The runtime knows a grammar by the protocol in `structured_outputs`.
"""
