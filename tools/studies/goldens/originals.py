"""Runs the published code, to compare the definitions with it.

Loads single functions and classes from the originals' files, which also import serving engines and
kernels that a vote does not need. make.sh downloads the files; they are not in the repository.
"""

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from definitions import Vote, repeated, voters
from torch import Tensor, nn
from torch.nn import functional

Names = dict[str, Any]


def load(path: Path, *names: str) -> Names:
    """The functions and classes of those names from a file."""
    tree = ast.parse(path.read_text())
    wanted = [node for node in tree.body if getattr(node, "name", None) in names]
    assert len(wanted) == len(names), f"{path} has changed"
    space: Names = {"torch": torch, "nn": nn, "F": functional, "math": math}
    space["_debug_print"] = lambda _: None
    exec(compile(ast.Module(wanted, []), str(path), "exec"), space)
    return space


class Originals:
    """The positions that each repository's code keeps."""

    def __init__(self, directory: Path) -> None:
        self._snapkv = load(directory / "snapkv_utils.py", "SnapKVCluster")
        self._factory = load(
            directory / "pyramidkv_utils.py",
            "SnapKVCluster",
            "PyramidKVCluster",
            "_gqa_groups",
            "_grouped_window_attn_cache",
            "_reduce_group_scores",
            "_select_topk_kv",
            "repeat_kv",
        )
        self._compress = load(directory / "flash_attn.py", "_naive_kvc_masked_attention")

    def snapkv(self, vote: Vote, query: Tensor, key: Tensor) -> Tensor:
        """SnapKV keeps a set for every query head: its model repeats keys before the cache."""
        cluster = self._snapkv["SnapKVCluster"](**_sizes(vote))
        return _kept(cluster, vote, query, repeated(key, vote.heads))

    def factory(self, vote: Vote, query: Tensor, key: Tensor) -> Tensor:
        """KVCache-Factory's kv_head layout, or its query-head one where the heads are as many."""
        options = {"gqa_score_agg": vote.group} if vote.group != "none" else {}
        cluster = self._factory["SnapKVCluster"](**_sizes(vote), **options)
        return _kept(cluster, vote, query, key)

    def pyramid(self, layers: int, K: int, window: int, length: int) -> list[int]:
        """Eligible positions that each layer keeps of a prompt, counted in what comes out."""
        query = torch.zeros(1, 1, length, 1)
        sizes = {"window_size": window, "max_capacity_prompt": K + window}
        clusters = [
            self._factory["PyramidKVCluster"](num_hidden_layers=layers, layer_idx=layer, **sizes)
            for layer in range(layers)
        ]
        outputs = [cluster.update_kv(query, query, query, None, 1)[0] for cluster in clusters]
        return [output.shape[2] - window for output in outputs]

    def kv_compress(self, vote: Vote, query: Tensor, key: Tensor) -> Tensor:
        """KV-Compress' metrics summed over the group [Hkv, eligible], its pool being max 7."""
        window = voters(vote, query)[:, -vote.window :].transpose(0, 1)
        keys = repeated(key[:, : vote.length], vote.heads).transpose(0, 1)
        measure: Callable[..., tuple[None, Tensor]] = self._compress["_naive_kvc_masked_attention"]
        _, metrics = measure(
            window, keys, keys, keys.shape[-1] ** -0.5, 0, True, False, True, vote.eligible
        )
        return metrics.reshape(len(key), -1, vote.length).sum(1)[:, : vote.eligible]


def _sizes(vote: Vote) -> Names:
    return {
        "window_size": vote.window,
        "max_capacity_prompt": vote.K + vote.window,
        "kernel_size": vote.kernel,
        "pooling": f"{vote.pool}pool",
    }


def _kept(cluster: Any, vote: Vote, query: Tensor, key: Tensor) -> Tensor:
    """Positions before the window [heads, K], in the order they come out: values carry them."""
    query, key = voters(vote, query), key[:, : vote.length]
    position = torch.arange(vote.length, dtype=torch.float32)[None, :, None].expand_as(key)
    groups = len(query) // len(key)
    kept: Tensor
    _, kept = cluster.update_kv(key[None], query[None], position[None], None, groups)
    return kept[0, :, : -vote.window, 0].long()
