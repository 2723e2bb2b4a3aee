"""Text to token ids, and whether a tokenizer can spell a text at all.

A context, a question and a reference are encoded apart, so that the same ids can be prefilled
together or one after the other. Each is encoded as a continuation: sentencepiece-like tokenizers
would otherwise begin every part with a space of their own.
"""

from tokenizers import Tokenizer

Ids = tuple[int, ...]


def opening_ids(tokenizer: Tokenizer, text: str) -> Ids:
    """The ids of a text that opens a prompt: with special tokens before it, none after it."""
    encoding = tokenizer.encode(text)
    end = len(encoding)
    special = encoding.special_tokens_mask
    while end > 0 and special[end - 1]:
        end -= 1
    return tuple(encoding.ids[:end])


def continuing_ids(tokenizer: Tokenizer, before: str, text: str) -> Ids:
    """The ids of `text` as it stands after the last line of `before`.

    Where the tokenizer joins the two in one token, the ids of the text on its own.
    """
    anchor = before[before.rstrip("\n").rfind("\n") + 1 :]
    head = _plain_ids(tokenizer, anchor)
    whole = _plain_ids(tokenizer, anchor + text)
    if whole[: len(head)] == head:
        return whole[len(head) :]
    return _plain_ids(tokenizer, text)


def reads_back(tokenizer: Tokenizer, ids: Ids, text: str) -> bool:
    """Whether ids decode to a text; a decoder may add or drop spaces before the first word."""
    return str(tokenizer.decode(list(ids))).lstrip() == text.lstrip()


def spells(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text survives being encoded and decoded."""
    return reads_back(tokenizer, _plain_ids(tokenizer, text), text)


def _plain_ids(tokenizer: Tokenizer, text: str) -> Ids:
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)
