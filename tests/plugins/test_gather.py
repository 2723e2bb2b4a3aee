"""SnapStreamGather's kernel, run thread by thread on the host, against its definition."""

import pytest
import torch

from snapexport.plugins import reference
from snapexport.plugins.binding import GatherProblem
from tests.plugins.body import call_body
from tests.plugins.emulated import Emulated, random

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def kept_positions(p: GatherProblem, length: int) -> torch.Tensor:
    """Random eligible positions of each KV head, ascending, [Hkv,K]."""
    kept = torch.full((p.kv_heads, p.K), -1)
    if length <= p.sink + p.recent + p.K:
        return kept
    generator = torch.Generator().manual_seed(length)
    for head in range(p.kv_heads):
        chosen = torch.randperm(length - p.sink - p.recent, generator=generator)
        kept[head] = chosen[: p.K].sort().values + p.sink
    return kept


@pytest.mark.parametrize("spare", [0, 4])
@pytest.mark.parametrize("length", [1, 2, 5, 9, 12, 13, 16, 23, 24])
def test_gather_kernel_equals_the_onnx_function(
    emulated: Emulated, length: int, spare: int
) -> None:
    p = GatherProblem(2, 24, 8, 2, 7, 3, spare)
    key, value = (random((2, 24, 8), torch.float32, seed) for seed in (0, 1))
    kept = kept_positions(p, length)
    inputs = [key[None], value[None], torch.tensor([length]), kept[None]]
    ring = {"L_sink": 2, "L_recent": 7, "spare": spare}
    expected = call_body("SnapStreamGather", inputs, ring)
    for ours, theirs in zip(emulated.gather(p, key, value, kept, length), expected, strict=True):
        assert torch.equal(ours, theirs[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "p",
    [
        GatherProblem(1, 30, 8, 0, 1, 5),
        GatherProblem(3, 300, 40, 4, 33, 0),
        GatherProblem(2, 300, 128, 4, 64, 70),
        GatherProblem(2, 300, 8, 4, 64, 70, 14),
    ],
    ids=lambda p: f"{p.T}x{p.head_dim}",
)
def test_gather_kernel_copies_every_cache_slot(
    emulated: Emulated, p: GatherProblem, dtype: torch.dtype
) -> None:
    key, value = (random((p.kv_heads, p.T, p.head_dim), dtype, seed) for seed in (0, 1))
    for length in (1, p.sink + p.recent + p.K, p.T - 1, p.T):
        kept = kept_positions(p, length)
        present = emulated.gather(p, key, value, kept, length)
        for cache, compressed in zip((key, value), present, strict=True):
            assert torch.equal(compressed, reference.gather(p, cache, kept, length))


def test_gather_kernel_reads_nothing_for_positions_out_of_range(emulated: Emulated) -> None:
    p = GatherProblem(1, 30, 8, 1, 4, 3)
    key = random((1, 30, 8), torch.float32, 0)
    kept = torch.tensor([[-(2**40), 30, 2**40]])
    for present in emulated.gather(p, key, key, kept, 30):
        assert not present[0, 5:].any()


def test_gather_kernel_refuses_unsupported_sizes(emulated: Emulated) -> None:
    refusal = emulated.launchers.gather_refusal
    assert refusal(GatherProblem(2, 24, 8, 2, 7, 0), "float32") == ""
    assert refusal(GatherProblem(2, 24, 8, 2, 0, 3), "float32").startswith("L_recent is 0")
    assert refusal(GatherProblem(2, 24, 9, 2, 7, 3), "float32").startswith("head dimension is 9")
    assert refusal(GatherProblem(0, 24, 8, 2, 7, 3), "float32").startswith("KV heads is 0")
    assert refusal(GatherProblem(2, 24, 8, 2, 7, 3, -1), "float32").startswith("spare is -1")
