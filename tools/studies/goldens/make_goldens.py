"""Writes tests/parity/golden/*.npz: what published methods keep, to hold snapexport against.

Runs in an environment of its own, which make.sh sets up. Two files:

- votes.npz: post-RoPE queries and keys, the positions that each published definition keeps of them,
  and PyramidKV's budgets. `definitions` decides. Asserted on the way: the code of SnapKV,
  KVCache-Factory and KV-Compress, run on the same input, keeps the same sets, counts the same
  budgets, measures the same. SnapStream published no code: there the definition stands alone, as
  for the sum of squares without the window's own votes.
- kvpress.npz: a tiny Llama, prompts, and what kvpress, running, keeps of them.

No kept set hangs on rounding: the last kept and the first dropped score are at least CLEAR apart.
Each file records the scripts, versions and seeds that made it.
"""

import argparse
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from definitions import Vote, gap, keep, pyramid, scores
from numpy.typing import NDArray
from originals import Originals
from presses import CONFIG, Press, Run, budgets, run, tiny_llama
from torch import Tensor
from transformers import LlamaForCausalLM

SEED = 0
CLEAR = 1e-3
"""Relative. Float32 rounding moves the scores of the second layer by 3e-6 at most (measured)."""

HEADS, KV_HEADS, LONGEST, HEAD_DIM = 4, 2, 160, 16
SHARPNESS = 1.6
"""Standard deviation of queries and keys: some attention is spread, some is not."""

PYRAMIDS = (
    (2, 64, 16, 400),
    (4, 120, 32, 1000),
    (16, 256, 32, 4000),
    (28, 1024, 32, 3000),
    (32, 2016, 32, 8192),
    (32, 96, 32, 8192),
    (36, 2048, 8, 4200),
    (32, 2048, 32, 4000),
    (32, 2048, 32, 3000),
)
"""layers, K, window, prompt length. The last two prompts are below 2K."""

PRESSES = (
    Press("snapkv", 120, 8, 5, 24),
    Press("snapkv", 77, 8, 5, 24),
    Press("snapkv", 120, 16, 7, 40),
    Press("pyramid", 120, 8, 5, 64),
)


def main() -> None:
    """Make both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--originals", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    write(arguments.out / "votes.npz", votes_file(Originals(arguments.originals)))
    write(arguments.out / "kvpress.npz", kvpress_file())


def write(path: Path, arrays: dict[str, Any]) -> None:
    """One golden, with what made it."""
    np.savez_compressed(path, made_by=json.dumps(made_by()), **arrays)
    print(f"{path.name}: {path.stat().st_size} bytes, {len(arrays)} arrays")


def made_by() -> dict[str, Any]:
    """Scripts, versions and seeds."""
    here = Path(__file__).parent
    packages = ("torch", "transformers", "kvpress", "numpy")
    return {
        "seed": SEED,
        "versions": {name: version(name) for name in packages}
        | {"python": platform.python_version()},
        "scripts": {
            path.name: path.read_text() for path in sorted(here.iterdir()) if path.is_file()
        },
    }


def votes_file(originals: Originals) -> dict[str, Any]:
    """Inputs, every vote's kept positions, one that ends in a tie, and the budgets."""
    query, key = attention_input()
    votes = dict.fromkeys(v for wanted in wanted_votes() for v in clear(wanted, query, key))
    tied = tie(query, key)
    kept = {vote.name: kept_of(originals, vote, query, key) for vote in votes}
    return {
        "query": query.half().numpy(),
        "key": key.half().numpy(),
        "votes": json.dumps([asdict(vote) | {"name": vote.name} for vote in votes]),
        "tied": json.dumps(asdict(tied)),
        "tied.kept": kept_of(originals, tied, query, key),
        "tied.rank": rank(tied, query, key),
        "pyramids": json.dumps([budgets_row(originals, *row) for row in PYRAMIDS]),
        **kept,
    }


def attention_input() -> tuple[Tensor, Tensor]:
    """Random query [H, L, D] and key [Hkv, L, D], float32 that float16 holds exactly."""
    shape = (HEADS + KV_HEADS, LONGEST, HEAD_DIM)
    drawn = (SHARPNESS * torch.randn(shape, generator=seeded(SEED))).half().float()
    return drawn[:HEADS], drawn[HEADS:]


def wanted_votes() -> Iterator[tuple[Vote, ...]]:
    """Votes that are to be compared, with the least K that they may share."""
    for length, window, kernel, pool in product((110, 160), (16, 32), (5, 7), ("avg", "max")):
        yield (Vote("snapkv", length, window, kernel, 20, pool=pool, heads=KV_HEADS),)
    yield (Vote("snapkv", 40, 16, 5, 30, heads=KV_HEADS),)
    per_head = Vote("per-kv-head", 160, 16, 5, 20, group="mean")
    yield per_head, replace(per_head, family="snapkv-per-query-head", group="none")
    for pool, group in product(("avg", "max"), ("mean", "max", "sum")):
        ours = replace(per_head, pool=pool, group=group)
        yield ours, replace(ours, family="factory-kv-head", order="group-first")
    squares = Vote("squares", 160, 8, 7, 20, vote="sum-squares", pool="max", group="sum")
    yield squares, replace(squares, family="kv-compress", window_pools=True)
    for length, kernel in product((110, 160), (5, 7)):
        causal = replace(per_head, length=length, kernel=kernel)
        yield causal, replace(causal, family="snapstream", softmax="candidates")


def clear(wanted: Sequence[Vote], query: Tensor, key: Tensor) -> list[Vote]:
    """The same votes with the next K that rounding can change in none of them."""
    ranked = [scores(vote, query, key) for vote in wanted]
    K = next(K for K in count(wanted[0].K) if all(gap(scored, K) > CLEAR for scored in ranked))
    return [replace(vote, K=K) for vote in wanted]


def tie(query: Tensor, key: Tensor) -> Vote:
    """A vote whose K ends amid equals in every head: a maximum is its neighbours' too."""
    wanted = Vote("snapkv", 160, 16, 7, 20, pool="max", heads=KV_HEADS)
    ranked = scores(wanted, query, key).sort(-1, descending=True).values
    equal = (ranked[:, 1:] == ranked[:, :-1]).all(0).tolist()
    return replace(wanted, K=equal.index(True, wanted.K - 1) + 1)


def rank(vote: Vote, query: Tensor, key: Tensor) -> NDArray[np.int8]:
    """Of eligible positions [heads, eligible]: 1 above the last kept score, 0 equal to it, -1."""
    ranked = scores(vote, query, key)
    last = ranked.sort(-1, descending=True).values[:, vote.K - 1, None]
    return (ranked - last).sign().numpy().astype(np.int8)


def kept_of(originals: Originals, vote: Vote, query: Tensor, key: Tensor) -> NDArray[np.int16]:
    """Positions [heads, K], held to the code that was published with the definition."""
    ranked = scores(vote, query, key)
    kept = keep(vote, ranked)
    if vote.family.startswith("snapkv"):
        require_as_good(ranked, kept, originals.snapkv(vote, query, key))
    if vote.family in ("snapkv", "factory-kv-head"):
        require_as_good(ranked, kept, originals.factory(vote, query, key))
    if vote.family == "kv-compress":
        torch.testing.assert_close(ranked.float(), originals.kv_compress(vote, query, key))
    return kept.numpy().astype(np.int16)


def require_as_good(ranked: Tensor, ours: Tensor, theirs: Tensor) -> None:
    """The same kept scores: the same sets, but for ties."""
    got, want = (ranked.gather(-1, kept).sort(-1).values for kept in (ours, theirs))
    assert torch.equal(got, want), "a definition is not what was published"


def budgets_row(
    originals: Originals, layers: int, K: int, window: int, length: int
) -> dict[str, Any]:
    """What each layer keeps: KVCache-Factory without the window, kvpress with it."""
    factory = pyramid(layers, K, window, length)
    assert factory == originals.pyramid(layers, K, window, length)
    sizes = {"layers": layers, "K": K, "window": window, "length": length}
    return sizes | {"factory": factory, "kvpress": budgets(layers, K, window, length)}


def kvpress_file() -> dict[str, Any]:
    """A model, its prompts, and every press' kept positions by layer."""
    model = tiny_llama(SEED)
    arrays: dict[str, Any] = {
        "config": json.dumps(CONFIG),
        "presses": json.dumps([asdict(press) for press in PRESSES]),
    }
    arrays |= {f"weights.{name}": half(value) for name, value in model.state_dict().items()}
    for index, press in enumerate(PRESSES):
        ids, result = next(clear_runs(model, press))
        arrays[f"{index}.ids"] = ids.numpy().astype(np.int16)
        arrays |= run_arrays(index, press, result)
    return arrays


def clear_runs(model: LlamaForCausalLM, press: Press) -> Iterator[tuple[Tensor, Run]]:
    """Random prompts [L], and what is kept of them, where that is clear in every layer."""
    for seed in count(SEED):
        ids = torch.randint(3, model.config.vocab_size, (press.length,), generator=seeded(seed))
        result = run(model, ids, press)
        pairs = zip(result.scores, result.kept, strict=True)
        if all(gap(scored, kept.shape[-1]) > CLEAR for scored, kept in pairs):
            yield ids, result


def run_arrays(index: int, press: Press, result: Run) -> dict[str, NDArray[Any]]:
    """Of each layer: kept [Hkv, K], key [Hkv, L, D], and the window's query [H, W, D]."""
    arrays: dict[str, NDArray[Any]] = {}
    for layer, kept in enumerate(result.kept):
        arrays[f"{index}.kept.{layer}"] = kept.numpy().astype(np.int16)
        arrays[f"{index}.key.{layer}"] = result.key[layer].numpy()
        arrays[f"{index}.query.{layer}"] = result.query[layer][:, -press.window :].numpy()
    return arrays


def seeded(seed: int) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


def half(value: Tensor) -> NDArray[np.float16]:
    """Exact, as the weights were drawn."""
    halved: NDArray[np.float16] = value.half().numpy()
    return halved


if __name__ == "__main__":
    main()
