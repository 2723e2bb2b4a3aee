"""Compiles the prescribed forms of answers, by llguidance, and follows them token by token.

grammar        a compiled grammar, and a request's place in it
closed_objects closes what a schema leaves open
acceptable     drops what a lenient schema says and llguidance refuses
subschemas     walks the schemas within a schema
digits         bounds the digits of numbers
grammars       compiles and keeps those of an LLM
trial_worker   compiles in a process of its own first, since some take all memory
library        calls llguidance
"""
