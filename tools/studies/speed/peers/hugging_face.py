"""transformers, with one of its caches, or with kvpress's SnapKV."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tools.studies.speed.peers.process import Scene, Variant

PACKAGES = ("transformers", "torch", "kvpress")
ROOM = 256
"""Positions of a static cache beyond the context."""


def variants(scene: "Scene") -> Iterator["Variant"]:
    """Each cache of transformers, in fp32 and in bf16, and kvpress."""
    from tools.studies.speed.peers.process import Variant

    model = {"model": scene.model, "threads": scene.threads}
    for cache in ("dynamic", "static", "compiled"):
        name, options = f"transformers, {cache}", model | {"cache": cache}
        prompts = cache != "compiled"  # which compiles decoding alone
        yield Variant(name, 32, scene.peers_python, __file__, options, scene.contexts, prompts)
    options = model | {"cache": "static", "dtype": "bfloat16"}
    name = "transformers in bf16, static"
    yield Variant(name, 16, scene.peers_python, __file__, options, scene.contexts)
    options = model | {"cache": "dynamic", "kept": scene.kv_budget}
    name, python = "kvpress SnapKVPress", scene.kvpress_python
    yield Variant(name, 32, python, __file__, options, scene.contexts)


class Transformers:
    """cache: dynamic, static, or compiled (static, torch.compile). kept: entries after SnapKV."""

    def __init__(
        self, model: str, cache: str, threads: int, kept: int | None = None, dtype: str = "float32"
    ) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self._torch, self._kept = torch, kept
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        self._is_static, self._compiles = cache != "dynamic", cache == "compiled"
        self._forward = self._model
        self._cache: Any = None
        self._position = self._likeliest = 0

    def first_token(self, tokens: Sequence[int]) -> None:
        self._cache = self._empty(len(tokens))
        press = self._press(self._kept / len(tokens)) if self._kept else nullcontext()
        with self._torch.inference_mode(), press:
            ids = self._torch.tensor([list(tokens)])
            out = self._model(input_ids=ids, past_key_values=self._cache, logits_to_keep=1)
        self._position, self._likeliest = len(tokens), int(out.logits.argmax())

    def fill(self, context: int) -> None:
        """Random keys and values; after SnapKV, as many as it keeps."""
        self._position = context - 1
        self._cache = None  # before there are two of them
        self._cache = self._empty(context)
        length = min(self._position, self._kept or self._position)
        config = self._model.config
        shape = (1, config.num_key_value_heads, length, config.head_dim)
        with self._torch.inference_mode():
            for layer in range(config.num_hidden_layers):
                keys, values = (self._torch.randn(shape).to(self._model.dtype) for _ in range(2))
                self._cache.update(keys, values, layer)
        if self._compiles:
            # For this length alone: a graph that serves others too would be slower.
            self._torch._dynamo.reset()
            self._forward = self._torch.compile(self._model.forward, dynamic=False)
            self.step()

    def step(self) -> None:
        self._decode(1)

    def stream(self, tokens: Sequence[int]) -> Iterator[int]:
        self.first_token(tokens)
        token = self._likeliest
        while True:
            yield token
            token = int(self._decode(token).logits[0, -1].argmax())

    def _decode(self, token: int) -> Any:
        with self._torch.inference_mode():
            out = self._forward(
                input_ids=self._torch.tensor([[token]]),
                position_ids=self._torch.tensor([[self._position]]),
                past_key_values=self._cache,
            )
        self._position += 1
        return out

    def _empty(self, length: int) -> Any:
        from transformers import DynamicCache, StaticCache

        if self._is_static:
            return StaticCache(config=self._model.config, max_cache_len=length + ROOM)
        return DynamicCache(config=self._model.config)

    def _press(self, kept: float) -> Any:
        """kvpress' context that keeps a share of the entries."""
        from kvpress import SnapKVPress

        return SnapKVPress(compression_ratio=max(0.0, 1 - kept))(self._model)


make = Transformers
