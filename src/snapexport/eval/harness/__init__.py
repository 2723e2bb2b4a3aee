"""lm-evaluation-harness on a build: the model that it calls `snapexport`.

The harness (0.4.13) looks for models in its own list alone and reads no entry points. So somebody
has to add ours: `register()` for a program, `cli` for the command line. Importing this package
loads neither the harness nor an engine's library.
"""

from importlib import import_module

from snapexport.contract.errors import needs_extra

NAME = "snapexport"


def register() -> None:
    """Make `snapexport` a model of the harness, beside its own. Raises UserError without it."""
    with needs_extra("eval"):
        from lm_eval.api.registry import model_registry

        # Adds the harness's own models, which it would not do later: the list is not empty then.
        import_module("lm_eval.models")
    if NAME not in model_registry:
        model_registry.register(NAME, target="snapexport.eval.harness.model:SnapexportLM")
