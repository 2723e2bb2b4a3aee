"""Manifests whose model and geometry disagree on layers that share a cache are refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from snapexport.contract.build_directory import Build
from snapexport.errors import UserError
from tests.builder.test_uneven_layers import FLAGS
from tests.contract.test_build_directory import Fields, rewrite
from tests.graphs.layered import MODELS, build
from tests.graphs.test_uneven_layers import geometry_of

CHANGES: dict[str, tuple[Callable[[Fields], object], str]] = {
    "geometry": (lambda m: m["geometry"].update(cache_of=[0, 1, 1, 0]), "shares other caches"),
    "model": (lambda m: m["model"].pop("cache_of"), "shares other caches"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_that_contradicts_itself_is_refused(change: str, tmp_path: Path) -> None:
    model = MODELS["gemma-4, shared caches"]
    build(model, geometry_of(model, **FLAGS), tmp_path / "b")
    spoil, message = CHANGES[change]
    rewrite(tmp_path / "b", spoil)
    with pytest.raises(UserError, match=message):
        Build.open(tmp_path / "b")
