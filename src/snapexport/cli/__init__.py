"""The command line: one module a command, and app.py, which runs them.

A command has HELP, `add_arguments(parser)` and `run(arguments) -> exit status`. Heavy imports are
inside `run`, so that `--help` and bad input answer at once.
"""
