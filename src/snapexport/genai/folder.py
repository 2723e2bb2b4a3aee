"""Writes a folder that onnxruntime-genai runs: graph, weights, configuration and tokenizer.

model.onnx  weights/  genai_config.json  snapexport.json
tokenizer.json  tokenizer_config.json  chat_template.jinja, as the build has them
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import snapexport
from snapexport.builder.staging import require_place, staged
from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kinds import graph_of
from snapexport.contract.manifest import MANIFEST, GraphName
from snapexport.errors import UserError
from snapexport.files.copying import copy_file
from snapexport.files.whole import sha256_of
from snapexport.genai import config
from snapexport.genai.caches import Caches
from snapexport.genai.graph import Routing, join
from snapexport.genai.parts import weight_files
from snapexport.genai.tokens import Comparison, compare_tokenizers
from snapexport.methods import table

RECORD = "snapexport.json"
"""Says which build the folder was made of. --overwrite replaces only folders that have it."""
KIND = "a folder that `snapexport genai` wrote"
TRIED = "0.18"
"""The release of onnxruntime-genai that the tests run."""

CARRIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""Files of a build that genai reads."""


@dataclass(frozen=True, kw_only=True)
class GenaiOptions:
    """A build, and the folder to write."""

    build: Path
    out: Path
    overwrite: bool = False


def write_folder(options: GenaiOptions) -> Comparison | None:
    """Write `options.out` atomically. Raises UserError. Returns what is known of its tokenizer."""
    build = Build.open(options.build)
    require_genai(build)
    _require_outside(options)
    require_place(options.out, options.overwrite, RECORD, KIND)
    caches = Caches.of(build.manifest.graphs["decode"])
    model = _join(build, caches)
    with staged(options.out, options.overwrite, RECORD, KIND) as out:
        (out / config.MODEL).write_bytes(model.SerializeToString(deterministic=True))
        for weights in sorted(weight_files(model)):
            (out / weights).parent.mkdir(parents=True, exist_ok=True)
            # Never a link: ONNX Runtime refuses files with several links in a branch.
            copy_file(build.file(weights), out / weights)
        for name in CARRIED:
            if os.path.lexists(build.directory / name):
                copy_file(build.file(name), out / name)
        _write_json(out / config.FILE, config.config(build, caches))
        tokenizer = compare_tokenizers(out)
        _write_json(out / RECORD, _record(build, tokenizer))
    return tokenizer


def require_genai(build: Build) -> None:
    """Raise UserError for a build that no such folder can be made of."""
    manifest = build.manifest
    facts: dict[str, Any] = dict(table.flags_of(manifest.graph_options))
    for method in table.METHODS:
        facts |= method.facts(manifest.geometry)
    facts |= {"states": bool(manifest.model.stateful), "batch": manifest.batch}
    build.require_run(command="genai", backend="onnxruntime", **facts)


def _join(build: Build, caches: Caches) -> onnx.ModelProto:
    blocks = next(filter(_takes_blocks, build.manifest.graphs), "prefill")
    decode, of_blocks = (
        onnx.load(build.graph(name), load_external_data=False) for name in ("decode", blocks)
    )
    routing = Routing.of(build.manifest.geometry, build.manifest.prefill_chunk)
    return join(decode, of_blocks, caches, routing)


def _takes_blocks(name: GraphName) -> bool:
    """Whether it takes a whole block onto a compressed row. Onto a full one, prefill does."""
    graph = graph_of(name)
    return graph.kind.extends_rows and not graph.tokens


def _record(build: Build, tokenizer: Comparison | None) -> dict[str, Any]:
    """Where the folder comes from, and what was compared."""
    return {
        "written_by": f"snapexport {snapexport.__version__}",
        "build": build.directory.resolve().name,
        "manifest_sha256": sha256_of(build.directory / MANIFEST),
        "build_versions": build.manifest.versions,
        "tried_with": f"onnxruntime-genai {TRIED}",
        "tokenizer": tokenizer.summary if tokenizer else None,
    }


def _require_outside(options: GenaiOptions) -> None:
    if options.out.resolve().is_relative_to(options.build.resolve()):
        raise UserError(
            f"--out {options.out} is inside the build {options.build}",
            "choose a directory outside of it",
        )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
