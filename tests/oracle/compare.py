"""Runs a build and the oracle on the same prompts, and asserts that they agree."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import cases
from .cases import CACHED, LOGITS, STEPS, Case
from .masked import OracleRun
from .raw import Array, Compressed, RawBuild, Slots, prefill_and_compress
from .vote import is_whole


def assert_agrees(case: Case, lengths: Sequence[int], steps: int = STEPS) -> float:
    """Random prompts of these lengths: prefill, kept positions, cache, and a decode together.

    Returns the largest difference of logits.
    """
    errors = []
    for group in cases.in_groups(lengths, case.batch):
        wants = [cases.oracle(case, length, steps) for length in group]
        requests = [_checked_request(case, want, errors) for want in wants]
        errors.append(assert_decodes(cases.built(case), requests, wants, str(case)))
    return max(errors)


def _checked_request(case: Case, want: OracleRun, errors: list[float]) -> Compressed:
    where = f"{case} L={len(want.prompt)}"
    logits, request = prefill_and_compress(cases.built(case), want.prompt)
    errors.append(assert_logits(logits, want.prefill_logits, f"{where} prefill"))
    assert_same_topk(request, want, where)
    assert_cache(request, want, case, where)
    return request


def assert_agrees_with_plain(
    build: RawBuild, checkpoint: str, lengths: Sequence[int], where: str
) -> float:
    """The same against transformers' own model with its full cache."""
    return assert_agrees_with([cases.plain(checkpoint, n) for n in lengths], build, where)


def assert_agrees_with(wants: Sequence[OracleRun], build: RawBuild, where: str) -> float:
    """Prefill, and a decode together. Returns the largest difference of logits."""
    requests, errors = [], []
    for want in wants:
        logits, request = prefill_and_compress(build, want.prompt)
        place = f"{where} L={len(want.prompt)} prefill"
        errors.append(assert_logits(logits, want.prefill_logits, place))
        requests.append(request)
    return max(*errors, assert_decodes(build, requests, wants, where))


def assert_decodes(
    build: RawBuild, requests: Sequence[Compressed], wants: Sequence[OracleRun], where: str
) -> float:
    """All requests decode in one batch, each as if alone. Returns the largest error of logits."""
    slots, errors = Slots(build, requests), [0.0]
    for step in range(len(wants[0].decode_logits)):
        got = slots.step([want.tokens[step] for want in wants])
        for request, row, want in zip(requests, got, wants, strict=True):
            place = f"{where} L={request.length} step {step}"
            errors.append(assert_logits(row, want.decode_logits[step], place))
    return max(errors)


def assert_logits(got: Array, want: NDArray[np.float32], where: str) -> float:
    """The same [V] logits, and the same greedy token. Returns the largest difference."""
    assert got.dtype == np.float32 and got.shape == want.shape, f"{where}: {got.dtype} {got.shape}"
    error = float(np.abs(got - want).max())
    assert error <= LOGITS, f"{where}: logits differ by {error:.2e}"
    best, second = np.sort(want)[[-1, -2]]
    tokens = f"{got.argmax()}, not {want.argmax()} (ahead by {best - second:.1e})"
    assert got.argmax() == want.argmax(), f"{where}: greedy token {tokens}"
    return error


def noise(got: NDArray[np.float32], want: NDArray[np.float32]) -> float:
    """Standard deviation of the error, relative to that of the logits."""
    return float((got - want).std() / want.std())


def assert_same_topk(request: Compressed, want: OracleRun, where: str) -> None:
    for layer, got in enumerate(request.topk):
        positions, gaps = want.topk_positions[layer], want.vote_gaps[layer]
        message = f"{where} layer {layer}: kept {got}, not {positions}; vote gaps {gaps}"
        assert np.array_equal(got, positions), message


def assert_cache(request: Compressed, want: OracleRun, case: Case, where: str) -> None:
    """Each cache slot holds the position that the geometry assigns to it, or zero."""
    for layer, pair in enumerate(request.cache):
        for got, prompt in zip(pair, _of_cache(want, case, layer), strict=True):
            expected = expected_slots(prompt, want, case, layer)
            used = expected.any(-1)
            error = np.abs(got[0] - expected)[used].max()
            assert error <= CACHED, f"{where} layer {layer}: cache differs by {error:.2e}"
            clean = case.policy == "full" or not got[0][~used].any()
            assert clean, f"{where} layer {layer}: unused slots are not zero"


def _of_cache(want: OracleRun, case: Case, cache: int) -> list[NDArray[np.float32]]:
    """The prompt's keys and values of the KV heads of a cache."""
    groups = [
        (layer, list(heads))
        for layer, of_layer in enumerate(case.geometry.slots.head_groups)
        for heads in of_layer
    ]
    if not groups:
        return [*want.prompt_cache[cache]]
    layer, heads = groups[cache]
    return [states[heads] for states in want.prompt_cache[layer]]


def expected_slots(
    prompt: NDArray[np.float32], want: OracleRun, case: Case, layer: int
) -> NDArray[np.float32]:
    """prompt [Hkv, L, D] -> [Hkv, S, D]."""
    shape, (heads, length, dim) = case.geometry.layers[layer], prompt.shape
    slots = np.zeros((heads, shape.cache_slots, dim), np.float32)
    if is_whole(shape, length):
        slots[:, :length] = prompt
        return slots
    for position in range(length):
        ring = shape.L_recent and (position - shape.L_sink) % shape.L_recent
        slot = position if position < shape.L_sink else shape.L_sink + ring
        slots[:, slot] = prompt[:, position]
    for head, row in enumerate(want.topk_positions[layer]):
        used = row[row >= 0]
        first = shape.L_sink + shape.L_recent
        slots[head, first : first + len(used)] = prompt[head, used]
    return slots
