"""Chooses which graphs of a build an executor runs. Loads nothing."""

from dataclasses import dataclass, field
from typing import Literal

from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kind import Run
from snapexport.contract.graph_kinds import BASELINE, graph_of
from snapexport.contract.manifest import GraphName

Role = Literal["both", "prefill", "decode"]
"""What an executor loads: the graphs that take prompts, those of decode, or all of them."""

PrefillForm = Literal["chunks", "blocks", "both"]
"""chunks: into a cache of full length, which is then compressed. blocks: onto a compressed row.
both: chunks where the prompt is neither too long nor begins with a parked row."""


@dataclass(frozen=True, slots=True)
class GraphSet:
    """The graphs of a build that one executor runs: the compressed cache's, or the full cache's.

    names: those that are loaded. prefill: of them, by the positions of each one's cache, ascending;
    none where all prompts go block by block. decode: by the batch slots that each runs, ascending,
    loaded or not. verify: the same for several tokens of each; none where steps take one,
    and none of a baseline. chunks: tokens of those that graphs take a prompt in, ascending; the
    prefill chunk is last. form: how prompts are taken.
    """

    names: tuple[GraphName, ...]
    prefill: dict[int, GraphName]
    decode: dict[int, GraphName]
    chunks: tuple[int, ...]
    full_cache: bool
    verify: dict[int, GraphName] = field(default_factory=dict)
    role: Role = "both"
    form: PrefillForm = "chunks"

    @classmethod
    def of(
        cls,
        build: Build,
        *,
        baseline: bool,
        form: PrefillForm = "chunks",
        role: Role = "both",
        speculates: bool = True,
    ) -> "GraphSet":
        """baseline: the uncompressed graphs; a build of the full cache is its own. speculates: with
        those that draft, where the build has them.

        The build has those graphs: `Build.require_run` refuses what it lacks.
        """
        manifest, geometry = build.manifest, build.manifest.geometry
        prefix = BASELINE if baseline and build.has_baseline else ""
        verify = {} if prefix else manifest.verify_graphs()
        run = Run(
            geometry=geometry,
            takes_prompts=role != "decode",
            generates=role != "prefill",
            chunks=form != "blocks",
            blocks=form != "chunks",
            full_cache=baseline or not geometry.compresses,
            drafts=speculates and bool(verify),
        )
        found = ((name, graph_of(name)) for name in manifest.graphs)
        names = tuple(
            name
            for name, graph in found
            if graph.is_baseline == bool(prefix) and graph.kind.loaded_if(run)
        )
        prefill = manifest.prefill_graphs(prefix).items()
        return cls(
            names=names,
            prefill={positions: name for positions, name in prefill if name in names},
            decode=manifest.decode_graphs(prefix),
            chunks=manifest.chunks[-1:] if prefix else manifest.chunks,
            full_cache=run.full_cache,
            verify=verify,
            role=role,
            form=form,
        )
