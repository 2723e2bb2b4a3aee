"""Mutated manifests with right hashes, and builds with other things in place of files."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snapexport.contract.manifest import MANIFEST, Manifest
from tests.fuzz import material
from tests.fuzz.children import WronglyAcceptedError
from tests.fuzz.mutations import dumped, mutated
from tests.fuzz.outcomes import OTHER, SAME

TRUSTED = {
    "versions", "engines", "linked_weights", "target", "quantization", "weights.sha256",
    "model.architecture", "model.eos_token_id", "model.max_position_embeddings",
    "model.sliding_window", "model.attention_sinks", "model.num_experts", "bits_per_weight",
    "model.qk_nope_head_dim", "model.v_head_dim", "matrices",
    "geometry.policy", "geometry.budget", "geometry.vote", "geometry.pool", "geometry.softmax",
    "geometry.group", "geometry.pool_kernel", "graph_options.methods",
    "traces.prefill", "traces.decode",
}  # fmt: skip
"""Facts that no name or shape of a graph shows: they are trusted (SECURITY.md)."""


class Manifests:
    name = "manifests"

    def __init__(self, work: Path) -> None:
        import onnxruntime  # noqa: F401

        self._build = work / material.BUILD
        self._expected = json.loads((work / material.EXPECTED).read_text())
        self._original = json.loads((self._build / MANIFEST).read_text())

    def mutate(self, rng: random.Random, directory: Path) -> str:
        material.link_tree(self._build, directory)
        if rng.random() < 0.12:
            return _misplace(directory, rng)
        fields, told = mutated(self._original, rng)
        raw, more = dumped(fields, rng)
        material.replace_manifest(directory, raw)
        return f"{told} {more}"

    def judge(self, directory: Path) -> tuple[str, str]:
        from snapexport.cli.summary import build_summary
        from snapexport.contract.build_directory import Build

        manifest = Build.open(directory).manifest
        json.dumps(build_summary(Build.open(directory)))
        found = material.tokens(directory)
        if found != self._expected:
            raise WronglyAcceptedError(f"other tokens: {_changed(self._original, manifest)}")
        changed = _changed(self._original, manifest)
        if told := [name for name in changed if name not in TRUSTED]:
            raise WronglyAcceptedError(f"other facts: {told}")
        return (OTHER, f"{changed}") if changed else (SAME, "")


def _changed(original: dict[str, Any], manifest: Manifest) -> list[str]:
    """Names of the facts that differ, to a depth of two."""
    now = json.loads(manifest.model_dump_json())
    if not now["traces"]:  # as in a build that was derived from another
        original = original | {"traces": {}}
    names = []
    for key, old in original.items():
        new = now[key]
        if key in ("versions", "engines") or not isinstance(old, dict):
            if key == "weights" and _files(old) == _files(new):
                names += ["weights.sha256"] if old != new else []
            elif old != new:
                names.append(key)
            continue
        names += [
            f"{key}.{part}" for part in old if _unordered(old[part]) != _unordered(new.get(part))
        ]
    return names


def _unordered(fact: Any) -> Any:
    """Inputs and outputs are bound by name: their order is no fact."""
    if not isinstance(fact, dict) or "inputs" not in fact:
        return fact
    return fact | {
        kind: sorted(fact[kind], key=lambda spec: str(spec["name"]))
        for kind in ("inputs", "outputs")
    }


def _files(weights: list[dict[str, Any]]) -> list[list[Any]]:
    return sorted([[one["file"], one["size"], one["header_sha256"]] for one in weights])


def _misplace(directory: Path, rng: random.Random) -> str:
    """Put something else in the place of a file or folder."""
    path = rng.choice(sorted(directory.rglob("*")))
    way = rng.choice(list(_PLACES))
    if path.is_dir():
        path.rename(path.with_name("moved"))
    else:
        path.unlink()
    _PLACES[way](path)
    return f"{path.name}: {way}"


def _link(path: Path) -> None:
    moved = path.with_name("moved")
    path.symlink_to(moved if moved.exists() else "/etc/passwd")


def _socket(path: Path) -> None:
    import socket

    short = Path(f"/tmp/.fuzz-socket-{os.getpid()}")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(short))
    try:
        short.rename(path)
    except OSError:
        short.unlink()


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


_PLACES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "link": _link,
    "loop": lambda path: path.symlink_to(path),
    "directory": Path.mkdir,
    "socket": _socket,
    "huge": _huge,
    "nothing": lambda _: None,
}
