"""Adds the model `snapexport` to lm-evaluation-harness.

The harness (0.4.13) reads no entry points: a program calls `register()`, and the command line is
`python -m tools.studies.lm_eval` in the repository's root. Importing this package loads neither
the harness nor a backend.
"""

from importlib import import_module

from snapexport.errors import UserError

NAME = "snapexport"


def register() -> None:
    """Add `snapexport` to the harness's models. Raises UserError where the harness is missing."""
    try:
        from lm_eval.api.registry import model_registry

        # Adds the harness's own models: it would not do so later, when the list is not empty.
        import_module("lm_eval.models")
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed", "pip install 'lm-eval>=0.4.13'") from None
    if NAME not in model_registry:
        model_registry.register(NAME, target="tools.studies.lm_eval.model:SnapexportLM")
