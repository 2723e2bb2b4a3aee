"""Says what an executor can take, by its build and the graphs that are loaded."""

from dataclasses import dataclass

from snapexport.contract.manifest import Manifest
from snapexport.contract.pieces import FurtherWork, Prefill
from snapexport.methods import table
from snapexport.runtime.engine.graph_set import PrefillForm


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest prompts, steps and batches that an executor takes.

    batch: batch slots.
    decode_batches: how many of the first batch slots a decode step can run, ascending; the last is
    `batch`. A step of fewer costs as much as the next of these.
    step_tokens: most tokens of a batch slot that a decode step takes.
    longest_prompt: tokens of a prompt.
    positions: tokens are fed at positions below it.
    prefill: how prompts are taken.
    model_positions: tokens that the model itself takes; 0: unknown.
    after_prompt: positions of L_max that no prompt may use.
    """

    batch: int
    decode_batches: tuple[int, ...]
    step_tokens: int
    longest_prompt: int
    positions: int
    vocab_size: int
    eos_token_id: frozenset[int]
    prefill: Prefill
    ranks: int = 1
    model_positions: int = 0
    after_prompt: int = 0

    @property
    def prefill_chunk(self) -> int:
        """Tokens of a chunk, or of a block."""
        return self.prefill.chunk

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        *,
        full_cache: bool,
        verifies: bool = False,
        form: PrefillForm = "chunks",
        chunks: tuple[int, ...] = (),
    ) -> "Limits":
        """A full cache ends at L_max; a compressed one goes on to the model's own limit.

        chunks: tokens of those that graphs take, ascending; none: only of the prefill chunk.
        """
        geometry, model = manifest.geometry, manifest.model
        longest = min(geometry.L_max, model.max_position_embeddings)
        positions = longest if full_cache else model.max_position_embeddings
        if not full_cache:
            longest -= geometry.L_max - geometry.longest_prompt
        return cls(
            batch=manifest.batch,
            decode_batches=tuple(manifest.decode_graphs()),
            step_tokens=geometry.steps.tokens if verifies else 1,
            longest_prompt=longest if form == "chunks" else positions,
            positions=positions,
            vocab_size=model.vocab_size,
            eos_token_id=frozenset(model.eos_token_id),
            prefill=Prefill(
                chunks=chunks or (manifest.prefill_chunk,),
                longest=0 if form == "blocks" else longest,
                voters=geometry.block_voters(manifest.prefill_chunk),
                rewinds=not model.stateful,
                further=() if full_cache else _further_work(manifest),
            ),
            model_positions=model.max_position_embeddings,
            after_prompt=0 if full_cache else geometry.after_prompt,
        )


def _further_work(manifest: Manifest) -> tuple[FurtherWork, ...]:
    """The work that follows the chunks of a prompt that is compressed."""
    geometry = manifest.geometry
    methods = table.methods_on(geometry, manifest.graph_options)
    return tuple(found for method in methods if (found := method.further(geometry)))
