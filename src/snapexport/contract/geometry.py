"""The shape of all caches of a model: their slots, the vote that fills them, and decode's steps.

The full cache is the geometry L_sink = L_max, L_recent = K = 0. Knows no model and no graph.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, get_args

from snapexport.contract.slots import LayerGeometry, Slots
from snapexport.contract.vote import Vote, Voter
from snapexport.errors import UserError, require_at_least


@dataclass(frozen=True, slots=True)
class Steps:
    """tokens: q, the most tokens of a batch slot in a step."""

    tokens: int = 1

    @property
    def several(self) -> bool:
        """Whether a step may take more than one token."""
        return self.tokens > 1

    @property
    def spare(self) -> int:
        """Ring slots beyond L_recent that steps of q tokens need."""
        return 2 * (self.tokens - 1)


Policy = Literal["snapstream", "streaming", "sage", "snapkv", "full"]
_KEPT = attrgetter("K")
POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """Geometry of all caches. Raises UserError for values that do not fit together.

    L_max: longest prompt, tokens. slots: of each cache. vote: which prompt positions are kept;
    nothing is voted where every K is 0. steps: the tokens of a decode step.
    """

    policy: Policy
    L_max: int
    slots: Slots
    vote: Vote = field(default_factory=Vote)
    steps: Steps = field(default_factory=Steps)

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UserError(f"no policy '{self.policy}'", f"choose from {', '.join(POLICIES)}")
        require_at_least("--L-max", self.L_max, 1)
        if self.compresses:
            self._validate_window()
            self._validate_topk()
        if self.longest_prompt < 1:
            raise UserError(
                f"--vote-queries {self.vote.vote_queries} takes {self.vote.L_obs} tokens after a "
                f"prompt, for which --L-max {self.L_max} leaves no room",
                f"use --L-max {self.vote.L_obs + 1} or more",
            )

    def _validate_window(self) -> None:
        L_obs = self.vote.L_obs
        if L_obs > self.L_max:
            raise UserError(
                f"--L-obs {L_obs} is more than the {self.L_max} tokens of the longest prompt",
                f"use --L-obs {self.L_max} or less",
            )
        recent = min((layer.L_recent for layer in self.layers if layer.K), default=L_obs)
        if L_obs > recent and self.vote.voter.is_in_ring:
            raise UserError(
                f"--L-obs {L_obs} is larger than --L-recent {recent}: "
                "the observation window must be inside the ring",
                f"use --L-obs {max(1, recent)} or less, or --L-recent {L_obs} or more",
            )

    def _validate_topk(self) -> None:
        most = max(layer.K for layer in self.layers)
        if most > self.L_max:
            raise UserError(
                f"--K {most} is more than the {self.L_max} tokens of the longest prompt",
                f"use --K {self.L_max} or less",
            )

    @property
    def compresses(self) -> bool:
        """Whether a compress step follows prefill."""
        return self.policy != "full"

    @property
    def layers(self) -> tuple[LayerGeometry, ...]:
        """The slots of each cache: of each layer, or of each group of its KV heads."""
        return self.slots.shapes(self.steps.spare if self.compresses else 0)

    @property
    def shapes(self) -> dict[int, LayerGeometry]:
        """The slots of each cache, by its number."""
        return {
            cache.cache: shape for cache, shape in zip(self.slots.caches, self.layers, strict=True)
        }

    @property
    def widest(self) -> dict[int, LayerGeometry]:
        """The cache with the most slots of each layer that has caches of its own."""
        return {n: max(shapes, key=_KEPT) for n, shapes in self._by_layer().items()}

    @property
    def narrowest(self) -> dict[int, LayerGeometry]:
        """The cache with the fewest slots of each layer that has caches of its own."""
        return {n: min(shapes, key=_KEPT) for n, shapes in self._by_layer().items()}

    def _by_layer(self) -> dict[int, list[LayerGeometry]]:
        found: dict[int, list[LayerGeometry]] = {}
        for cache, shape in zip(self.slots.caches, self.layers, strict=True):
            found.setdefault(cache.layer, []).append(shape)
        return found

    def head_slots(self, kv_heads: Sequence[int]) -> int:
        """Cache slots of all KV heads of all layers. kv_heads: of each layer."""
        held = zip(self.slots.heads_held(kv_heads), self.layers, strict=True)
        return sum(heads * layer.cache_slots for heads, layer in held)

    @property
    def votes(self) -> bool:
        """Whether any cache keeps positions that a vote chose."""
        return any(layer.K for layer in self.layers)

    @property
    def voter(self) -> Voter | None:
        """Whose queries vote; None where nothing is voted."""
        return self.vote.voter if self.votes else None

    def block_voters(self, chunk: int) -> int:
        """A prompt's last tokens that vote on each of its blocks: W, and at most half a chunk."""
        votes = self.voter and self.voter.votes_on_blocks
        return min(self.vote.L_obs, chunk // 2) if votes else 0

    @property
    def after_prompt(self) -> int:
        """Tokens that are fed after a prompt so that their queries vote, and then forgotten."""
        return self.vote.L_obs if self.voter and self.voter.follows_prompt else 0

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt: the full-length cache holds what votes after it."""
        return self.L_max - self.after_prompt

    @property
    def held_whole(self) -> int:
        """Tokens of the longest prompt of which every vote keeps all."""
        sizes = [layer.size for layer in self.layers if layer.K]
        return min(sizes, default=self.L_max)

    def is_single_shot(self, prefill_chunk: int) -> bool:
        """Whether a prefill chunk of that many tokens holds the whole padded prompt."""
        return prefill_chunk == self.L_max

    def chunk_facts(self, prefill_chunk: int) -> dict[str, object]:
        """Facts of the vote and prefill's chunks, for the table of exclusions."""
        return {
            "vote_queries": self.voter and self.voter.name,
            "voters": self.vote.L_obs,
            "prefill_chunk": prefill_chunk,
            "single_shot": self.is_single_shot(prefill_chunk),
        }

    @classmethod
    def full(
        cls,
        L_max: int,
        num_layers: int,
        tokens: int = 1,
        cache_of: tuple[int, ...] = (),
    ) -> "CacheGeometry":
        """The uncompressed cache: every position is a sink."""
        slots = Slots(num_layers, L_sink=L_max, L_recent=0, K=0, cache_of=cache_of)
        return cls("full", L_max, slots, steps=Steps(tokens))

    def as_full(self) -> "CacheGeometry":
        """The uncompressed cache of the same model: the baseline."""
        slots = self.slots
        return CacheGeometry.full(self.L_max, slots.num_layers, cache_of=slots.cache_of)


def require_capacities(given: Collection[int], chunk: int, L_max: int) -> list[int]:
    """Positions of the caches of further prefill graphs, ascending. Raises UserError.

    The smallest holds a chunk. Each is at least twice the one before, so that heads move to new
    places without overlapping their old ones, and moving is rare.
    """
    if given and chunk == L_max:
        raise UserError(
            "--prefill-capacities is for prefill in chunks, but the prefill chunk is L_max",
            "leave it out, or use a smaller --prefill-chunk",
        )
    least, ascending = chunk, sorted(set(given))
    for capacity in (*ascending, L_max) if given else ():
        if capacity < least:
            raise UserError(
                f"--prefill-capacities {' '.join(map(str, ascending))}: {capacity} is below "
                f"{least}",
                f"begin at {chunk} (the prefill chunk) or above, at least double from one to the "
                f"next, and end at {L_max // 2} (half of --L-max) or below",
            )
        least = max(2 * capacity, chunk)
    return ascending
