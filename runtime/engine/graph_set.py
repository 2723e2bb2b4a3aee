"""Chooses which graphs of a build an executor runs. Loads nothing."""

from dataclasses import dataclass, field
from typing import Literal

from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kinds import BASELINE, MTP, MTP_PREFILL
from snapexport.contract.manifest import GraphName
from snapexport.errors import UserError

Role = Literal["both", "prefill", "decode"]
"""What an executor loads: the graphs that take prompts, those of decode, or all of them."""

PrefillForm = Literal["chunks", "blocks", "both"]
"""chunks: into a cache of full length, which is then compressed. blocks: onto a compressed row.
both: chunks where the prompt is neither too long nor begins with a parked row."""


@dataclass(frozen=True, slots=True)
class GraphSet:
    """The graphs of a build that one executor runs: the compressed cache's, or the full cache's.

    prefill: by the positions of each one's cache, ascending; none where all prompts go block by
    block. decode: by the batch slots that each runs, ascending. verify: the same for several tokens
    of each; none without --tokens-per-step, and none of a baseline. others: that are loaded, such
    as compress and extend. decodes: whether the decode graphs are loaded. role: whether the others
    are. form: how prompts are taken.
    """

    prefill: dict[int, GraphName]
    decode: dict[int, GraphName]
    full_cache: bool
    verify: dict[int, GraphName] = field(default_factory=dict)
    others: tuple[GraphName, ...] = ()
    decodes: bool = True
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
        """baseline: the uncompressed graphs. speculates: with those that draft, where the build has
        them. Raises UserError where the build lacks a graph.

        A build of the full cache is its own baseline.
        """
        _require_extend(build, baseline, form)
        manifest, geometry = build.manifest, build.manifest.geometry
        if baseline and geometry.compresses and not build.has_baseline:
            raise UserError(
                f"{build.directory} has no baseline graphs", "build it again with --baseline"
            )
        prefix = BASELINE if baseline and build.has_baseline else ""
        full_cache = baseline or not geometry.compresses
        verify = {} if prefix else manifest.verify_graphs()
        others: list[GraphName] = []
        if speculates and manifest.graph_options.mtp and role != "prefill" and verify:
            others += (MTP, MTP_PREFILL)
        if role != "decode":
            chunks = not (full_cache or manifest.single_shot or form == "blocks")
            others += ["compress"] if chunks else []
            others += ["vote"] if chunks and geometry.repeats else []
            others += ["extend"] if form != "chunks" else []
        return cls(
            prefill={} if form == "blocks" else manifest.prefill_graphs(prefix),
            decode=manifest.decode_graphs(prefix),
            full_cache=full_cache,
            verify=verify,
            others=tuple(others),
            # Pseudo tokens are decoded while a prompt is prefilled.
            decodes=role != "prefill" or (not full_cache and geometry.pseudo_tokens > 0),
            role=role,
            form=form,
        )

    @property
    def all(self) -> list[GraphName]:
        """Every graph that is loaded, once."""
        decode = self.decode.values() if self.decodes else ()
        verify = self.verify.values() if self.role != "prefill" else ()
        prefill = self.prefill.values() if self.role != "decode" else ()
        return [*decode, *verify, *prefill, *self.others]


def _require_extend(build: Build, baseline: bool, form: PrefillForm) -> None:
    if form == "chunks":
        return
    if baseline or not build.manifest.geometry.compresses:
        raise UserError(
            "a full cache takes no prompt block by block",
            "leave it out: prefill goes chunk by chunk",
        )
    if "extend" not in build.manifest.graphs:
        raise UserError(f"{build.directory} has no extend.onnx", "build it again with --extend")
