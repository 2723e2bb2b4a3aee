"""Chooses which graphs of a build an executor runs, and tells what it can then take.

Loads nothing.
"""

from dataclasses import dataclass, field
from typing import Literal

from snapexport.contract.build_directory import Build
from snapexport.contract.graph_kinds import BASELINE, MTP, MTP_PREFILL
from snapexport.contract.manifest import GraphName, Manifest
from snapexport.errors import UserError
from snapexport.runtime.engine.hand_over import Role
from snapexport.runtime.engine.repetition import repeated_starts
from snapexport.runtime.requests.scheduler import block_end

PrefillForm = Literal["chunks", "blocks", "both"]
"""chunks: into a cache of full length, which is then compressed. blocks: onto a compressed row.
both: chunks where the prompt is neither too long nor begins with a parked row."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an executor can take.

    batch: batch slots. decode_batches: how many of the first batch slots a decode step can run,
    ascending; the last is `batch`. A step of fewer costs as much as the next of these.
    tokens_per_step: most tokens of a batch slot that a decode
    step takes. longest_prefill: tokens that prefill takes; longer prompts go block by block onto a
    compressed row. longest_prompt: tokens of a prompt. positions: tokens are fed at positions below
    it. pseudo_tokens: written after each prompt of more than `held_whole` tokens. repeats: whether
    such a prompt is repeated. drafts: whether it drafts tokens itself (`Executor.draft`).
    block_voters: of a prompt's last tokens, which each of its blocks but the last has room for.
    """

    batch: int
    decode_batches: tuple[int, ...]
    prefill_chunk: int
    tokens_per_step: int
    longest_prefill: int
    longest_prompt: int
    positions: int
    vocab_size: int
    eos_token_id: frozenset[int]
    pseudo_tokens: int = 0
    held_whole: int = 0
    repeats: bool = False
    drafts: bool = False
    block_voters: int = 0

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        *,
        full_cache: bool,
        verifies: bool = False,
        prefill: PrefillForm = "chunks",
        drafts: bool = False,
    ) -> "Limits":
        """A full cache ends at L_max; a compressed one goes on to the model's own limit."""
        L_max, model = manifest.geometry.L_max, manifest.model
        longest = min(L_max, model.max_position_embeddings)
        positions = longest if full_cache else model.max_position_embeddings
        pseudo_tokens = 0 if full_cache else manifest.geometry.pseudo_tokens
        if not full_cache:
            longest -= L_max - manifest.geometry.longest_prompt
        return cls(
            batch=manifest.batch,
            decode_batches=tuple(manifest.decode_graphs()),
            prefill_chunk=manifest.prefill_chunk,
            tokens_per_step=manifest.geometry.tokens_per_step if verifies else 1,
            longest_prefill=0 if prefill == "blocks" else longest,
            longest_prompt=longest if prefill == "chunks" else positions,
            positions=positions,
            vocab_size=model.vocab_size,
            eos_token_id=frozenset(model.eos_token_id),
            pseudo_tokens=pseudo_tokens,
            held_whole=manifest.geometry.held_whole,
            repeats=manifest.geometry.repeats and not full_cache,
            drafts=drafts,
            block_voters=manifest.geometry.block_voters(manifest.prefill_chunk),
        )

    def cuts(self, prompt_length: int) -> list[tuple[int, int]]:
        """[start, end) of a prompt's chunks, or of its blocks where there are no chunks."""
        chunk = self.prefill_chunk
        if self.longest_prefill:
            ends = [*range(chunk, prompt_length, chunk), prompt_length]
            return [(max(0, end - chunk), end) for end in ends]
        blocks, start = list[tuple[int, int]](), 0
        while start < prompt_length:
            end = block_end(start, prompt_length, chunk, self.block_voters)
            blocks.append((start, end))
            start = end
        return blocks

    def repeated_chunks(self, prompt_length: int) -> int:
        """Chunks in which prefill repeats a prompt; 0: it does not."""
        if not self.repeats or prompt_length <= self.held_whole:
            return 0
        return len(repeated_starts(prompt_length, self.prefill_chunk))

    def behind(self, prompt_length: int) -> int:
        """Tokens that prefill runs behind a prompt: decode's pseudo tokens, and a chunk of them."""
        if not self.pseudo_tokens or prompt_length <= self.held_whole:
            return 0
        return self.pseudo_tokens - 1 + self.prefill_chunk


@dataclass(frozen=True, slots=True)
class GraphSet:
    """The graphs of a build that one executor runs: the compressed cache's, or the full cache's.

    prefill: by the positions of each one's cache, ascending; none where all prompts go block by
    block. decode: by the batch slots that each runs, ascending. verify: the same for several tokens
    of each; none without --tokens-per-step, and none of a baseline. compress: None where prefill
    does it, or where nothing is compressed. extend: None where no prompt goes block by block. role:
    which of them are loaded. pseudo_tokens: written after each prompt, by decode. vote: None unless
    prompts are repeated. mtp: whether those of multi-token prediction are, which draft for verify.
    """

    prefill: dict[int, GraphName]
    compress: GraphName | None
    decode: dict[int, GraphName]
    full_cache: bool
    verify: dict[int, GraphName] = field(default_factory=dict)
    extend: GraphName | None = None
    role: Role = "both"
    pseudo_tokens: int = 0
    vote: GraphName | None = None
    mtp: bool = False

    @classmethod
    def of(
        cls,
        build: Build,
        *,
        baseline: bool,
        prefill: PrefillForm = "chunks",
        role: Role = "both",
        speculates: bool = True,
    ) -> "GraphSet":
        """baseline: the uncompressed graphs. speculates: with those that draft, where the build has
        them. Raises UserError where the build lacks a graph.

        A build of the full cache is its own baseline.
        """
        extend = _extend_of(build, baseline, prefill)
        manifest, compresses = build.manifest, build.manifest.geometry.compresses
        if baseline and compresses and not build.has_baseline:
            raise UserError(
                f"{build.directory} has no baseline graphs", "build it again with --baseline"
            )
        prefix = BASELINE if baseline and build.has_baseline else ""
        full_cache = baseline or not compresses
        none = full_cache or manifest.single_shot or prefill == "blocks"
        verify = {} if prefix else manifest.verify_graphs()
        drafts = speculates and manifest.graph_options.mtp and role != "prefill"
        return cls(
            prefill={} if prefill == "blocks" else manifest.prefill_graphs(prefix),
            compress=None if none else "compress",
            decode=manifest.decode_graphs(prefix),
            full_cache=full_cache,
            verify=verify,
            extend=extend,
            role=role,
            pseudo_tokens=0 if full_cache else manifest.geometry.pseudo_tokens,
            vote="vote" if manifest.geometry.repeats and not none else None,
            mtp=drafts and bool(verify),
        )

    @property
    def decodes(self) -> bool:
        """Whether the graphs of a single token are loaded; for prefill they write pseudo tokens."""
        return self.role != "prefill" or self.pseudo_tokens > 0

    @property
    def form(self) -> PrefillForm:
        """How prompts are taken."""
        if self.extend is None:
            return "chunks"
        return "both" if self.prefill else "blocks"

    @property
    def all(self) -> list[GraphName]:
        """Every graph that is loaded, once."""
        decode = list(self.decode.values()) if self.decodes else []
        if self.role != "prefill":
            decode += self.verify.values()
        if self.mtp:
            decode += (MTP, MTP_PREFILL)
        if self.role == "decode":
            return decode
        others = [name for name in (self.compress, self.vote, self.extend) if name]
        return [*decode, *self.prefill.values(), *others]


def _extend_of(build: Build, baseline: bool, prefill: PrefillForm) -> GraphName | None:
    """The extend graph, where a form of prefill needs it. Raises UserError."""
    if prefill == "chunks":
        return None
    if baseline or not build.manifest.geometry.compresses:
        raise UserError(
            "a full cache takes no prompt block by block",
            "leave it out: prefill goes chunk by chunk",
        )
    if "extend" not in build.manifest.graphs:
        raise UserError(f"{build.directory} has no extend.onnx", "build it again with --extend")
    return "extend"
