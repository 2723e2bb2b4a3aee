"""How byte-level tokenizers split text before they merge, by llama.cpp's name of the way.

`tokenizer.ggml.pre` names it. The names, and what goes with them, are those of llama.cpp's
`llama-vocab.cpp`; the expressions are those of the models' own tokenizers where it adapts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Splitting:
    """Expressions that are applied one after another: what each matches, and the rest, are apart.

    ignores_merges: a word that is a token is that token. adds_bos: unless the file says otherwise.
    """

    expressions: tuple[str, ...]
    ignores_merges: bool = False
    adds_bos: bool = False


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST = r"[^\r\n\p{L}\p{N}]?"
_LINES = r"\s*[\r\n]+"


def _words(numbers: str, letters: str = rf"{_FIRST}\p{{L}}+", after: str = r"[\r\n]*") -> str:
    """Words with a leading mark, numbers, marks with the line breaks after them, lines, spaces."""
    return rf"{letters}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+{after}|{_LINES}|{_SPACES}"


def _case_words(numbers: str, endings: str = "", after: str = r"[\r\n/]*") -> str:
    """Words as `_words`, with a word split before its capitals."""
    letters = rf"{_FIRST}{_UPPER}*{_LOWER}+{endings}|{_FIRST}{_UPPER}+{_LOWER}*{endings}"
    return _words(numbers, letters, after)


_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
_THREES, _DIGIT, _NUMBER = r"\p{N}{1,3}", r"\p{N}", r"\p{N}+"
_LLAMA3 = f"{_ENDINGS}|{_words(_THREES)}"
_QWEN2 = f"{_ENDINGS}|{_words(_DIGIT)}"
_MARKS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
_DEEPSEEK3 = rf"{_MARKS}[\r\n]*|{_LINES}|{_SPACES}"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_AND_KOREAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_PHRASE = r" ?[^(\s|.,!?…。，、।۔،)]+"
_THREES_FROM_THE_END = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+"
)
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters that have cases, which DeepSeek's first tokenizer lists."""
_NOT_HAN = (_UPPER[:-1] + r"&&[^\p{Han}]]", _LOWER[:-1] + r"&&[^\p{Han}]]")
_KIMI = (
    rf"\p{{Han}}+|{_FIRST}{_NOT_HAN[0]}*{_NOT_HAN[1]}+{_ENDINGS}?"
    rf"|{_FIRST}{_NOT_HAN[0]}+{_NOT_HAN[1]}*{_ENDINGS}?"
)
_EXAONE = rf"{_FIRST}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    _DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
_HALVING = "".join(rf"\s{{{1 << power}}}(?!\S)|" for power in range(9, 1, -1))
_JAIS2 = _LLAMA3.removesuffix(_SPACES) + _HALVING + r"\s{1,2}(?!\S)|\s{1}"
_BAILING = (
    rf"'(?i:[sdmt]|ll|ve|re)|{_FIRST}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    rf"|\s*[\r\n]|{_SPACES}"
)
_SEED = rf"{_ENDINGS}|{_FIRST}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}|{_SPACES}"
_EXAONE_MOE = rf"{_ENDINGS}|{_EXAONE}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
_QWEN35 = (
    rf"{_ENDINGS}|{_FIRST}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    rf"|{_LINES}|{_SPACES}"
)
_WHEN_UNKNOWN = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


def _all(names: str, splitting: Splitting) -> dict[str, Splitting]:
    return dict.fromkeys(names.split(), splitting)


SPLITTINGS: Mapping[str, Splitting] = {
    **_all("default", Splitting(_WHEN_UNKNOWN)),
    **_all(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Splitting((_LLAMA3,), ignores_merges=True, adds_bos=True),
    ),
    **_all("dbrx smaug-bpe chatglm-bpe", Splitting((_LLAMA3,))),
    **_all("glm4 glm5", Splitting((_LLAMA3,), ignores_merges=True)),
    **_all("jais-2", Splitting((_JAIS2,))),
    **_all(
        "minicpm5",
        Splitting((_THREES, f"{_ENDINGS}|{_words(_NUMBER)}"), ignores_merges=True),
    ),
    **_all(
        "deepseek-llm",
        Splitting(
            (
                r"[\r\n]",
                rf"\s?[{_CASED_LETTERS}]+",
                "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+$",
                _CJK_AND_KOREAN,
                r"\p{N}+",
            )
        ),
    ),
    **_all(
        "deepseek-coder",
        Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_AND_KOREAN, _DIGIT)),
    ),
    **_all(
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        Splitting((_THREES, _CJK, _DEEPSEEK3)),
    ),
    **_all("spark2_5", Splitting((_THREES, _CJK, rf"{_MARKS}|[\r\n]|{_SPACES}", _DIGIT))),
    **_all("youtu", Splitting((_YOUTU, _case_words(_DIGIT, f"{_ENDINGS}?")), ignores_merges=True)),
    **_all("falcon", Splitting((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    **_all(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        Splitting((_DIGIT, _GPT2)),
    ),
    **_all(
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert "
        "jina-v1-en jina-v2-code roberta-bpe mpt olmo jais exaone4 trillion granite-docling",
        Splitting((_GPT2,)),
    ),
    **_all(
        "stablelm2 qwen2 deepseek-r1-qwen kormo f2llmv2 megrez hunyuan solar-open grok-2",
        Splitting((_QWEN2,)),
    ),
    **_all("qwen35", Splitting((_QWEN35,))),
    **_all("ufakzeka", Splitting((_words(_DIGIT),))),
    **_all("laguna", Splitting((r"[^\n]+|[\n]+", _QWEN2))),
    **_all("poro-chat bloom gpt3-finnish", Splitting((_PHRASE,))),
    **_all("viking", Splitting((_PHRASE, _DIGIT))),
    **_all("tekken", Splitting((_case_words(_DIGIT),), ignores_merges=True, adds_bos=True)),
    **_all("chameleon", Splitting(_CHAMELEON, adds_bos=True)),
    **_all(
        "gpt-4o llama4 kanana2 talkie minimax-m2",
        Splitting((_case_words(_THREES, f"{_ENDINGS}?"),)),
    ),
    **_all(
        "granite-embed-multi-97m",
        Splitting((_case_words(_THREES, f"{_ENDINGS}?"),), ignores_merges=True),
    ),
    **_all(
        "tiny_aya cohere2moe",
        Splitting((_THREES_FROM_THE_END, _case_words(_THREES, f"{_ENDINGS}?"))),
    ),
    **_all("kimi-k2", Splitting((_words(_THREES, _KIMI),))),
    **_all("superbpe", Splitting((r"\p{N}+", r"\d{1,3}(?=(?:\d{3})*(?!\d))"))),
    **_all("bailingmoe bailingmoe2 llada-moe", Splitting((_BAILING,))),
    **_all("seed-coder", Splitting((_SEED,))),
    **_all("exaone-moe", Splitting((_EXAONE_MOE,))),
    **_all("afmoe", Splitting((_THREES_FROM_THE_END, _ASIAN, _DEEPSEEK3))),
}
"""Ways to split, by the name in the file. llama.cpp reads a file without one by `default`."""
