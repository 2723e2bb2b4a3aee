"""Compares onnxruntime-genai's tokenizer with ours on the same files, where genai is installed.

genai puts BOS before a text only by an option of its own, and its reading of tokenizer.json knows
fewer kinds of tokenizers. A prompt of other ids is another prompt, and no error would say so.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper
from tokenizers import Tokenizer

from snapexport.errors import first_line
from snapexport.runtime.requests.prompts import load_tokenizer

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    " a leading space, and a trailing one ",
    "  two  spaces\tand a tab\n\nand lines\r\n",
    "def f(x):\n    return x ** 2  # 3.14159, 1,234,567\n",
    "It's DON'T we'll I'M, naïve café Ünïcödé",
    "日本語のテキスト、中文文本，한국어 문장, русский текст",
    "🙂 👩‍👩‍👧 e\u0301 \u00a0 \u200b ﬁ",
    "https://example.org/a?b=c&d=%20 <tag attr='x'/> {\"k\": [1, 2]}",
)
"""No texts of special tokens: these are a matter of templates."""

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Comparison:
    """Facts about genai's tokenizer. start: tokens that ours puts before a text.

    compared: whether genai was there. differing: the texts whose ids are others, even with its
    option add_special_tokens. failed: what genai said when it read the files.
    """

    start: tuple[int, ...]
    compared: bool = False
    differing: tuple[str, ...] = ()
    failed: str = ""

    @property
    def summary(self) -> str:
        """One line for users."""
        if self.failed:
            return f"onnxruntime-genai cannot read it: {self.failed}. Pass token ids"
        if self.differing:
            count = f"{len(self.differing)} of {len(TEXTS)} texts"
            return f"other ids than ours for {count}, such as {self.differing[0]!r}. Pass token ids"
        if not self.compared:
            return f"not compared: onnxruntime-genai is not installed here{self._of_start}"
        return f"the same ids as ours for {len(TEXTS)} texts{self._of_start}"

    @property
    def _of_start(self) -> str:
        if not self.start:
            return ""
        ids = " ".join(map(str, self.start))
        return f'; it puts {ids} before a text only after update_options(add_special_tokens="true")'


def compare_tokenizers(folder: Path) -> Comparison | None:
    """The tokenizers of a folder that genai reads; None: it has none."""
    ours = load_tokenizer(folder)
    if ours is None:
        return None
    start = _start(ours)
    try:
        import onnxruntime_genai as genai
    except ImportError:
        return Comparison(start)
    try:
        theirs = _of_genai(genai, folder)
        return Comparison(start, True, find_differences(lambda text: ours.encode(text).ids, theirs))
    except Exception as error:  # the library has no class of its own for them
        return Comparison(start, failed=first_line(error))


def find_differences(ours: Encode, theirs: Encode) -> tuple[str, ...]:
    """The texts that two tokenizers give other ids."""
    return tuple(text for text in TEXTS if [*ours(text)] != [int(id) for id in theirs(text)])


def _start(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that are put before a text."""
    text = TEXTS[0]
    with_start = tokenizer.encode(text).ids
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    places = range(len(with_start) - len(plain) + 1)
    begin = next((at for at in places if with_start[at : at + len(plain)] == plain), 0)
    return tuple(with_start[:begin])


def _of_genai(genai: Any, folder: Path) -> Encode:
    """Its tokenizer, over a model of one node, since the own one may be large."""
    with tempfile.TemporaryDirectory() as place:
        for file in folder.iterdir():
            if file.suffix in (".json", ".jinja"):
                shutil.copyfile(file, Path(place) / file.name)
        (Path(place) / "model.onnx").write_bytes(_stand_in())
        tokenizer = genai.Tokenizer(genai.Model(place))
    tokenizer.update_options(add_special_tokens="true")
    encode: Encode = tokenizer.encode
    return encode


def _stand_in() -> bytes:
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "n"])
    same = helper.make_tensor_value_info("logits", TensorProto.INT64, [1, "n"])
    node = helper.make_node("Identity", ["input_ids"], ["logits"])
    graph = helper.make_graph([node], "tokens", [ids], [same])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())
