"""Finds the tokens of a GGUF file's vocabulary that end an answer: by its keys, and by their names.

Files name one or two of them, and models write others: Qwen2.5-Coder ends with `<|endoftext|>`
what it fills in, and its file names `<|im_end|>`. The names are those of llama.cpp.
"""

from snapexport.exporter.gguf.vocabulary import CONTROL, Vocabulary

_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_NAMES = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
_IF_CONTROL = (
    "</s>",  # Gemma has it among its tags of HTML
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
)
"""Words that may be text where the file doesn't say that they control."""
_NOT_WITH = {
    # The end of a message, where others end the answer.
    "<|end|>": ({"<|return|>", "<|call|>"}, {"<|call|>", "<|flush|>"}, {"<|calls|>", "<|flush|>"}),
    "</s>": ({"<|tool_response>"},),
}


def end_tokens(vocabulary: Vocabulary) -> list[int]:
    """Their ids: those of the file's keys first."""
    by_key = [vocabulary.token(name) for name in _KEYS]
    ids = vocabulary.ids
    named = [ids[name] for name in _NAMES if name in ids]
    named += [
        ids[name] for name in _IF_CONTROL if name in ids and vocabulary.kinds[ids[name]] == CONTROL
    ]
    without = {
        ids[name]
        for name, others in _NOT_WITH.items()
        if name in ids
        if any(ids.keys() >= together for together in others)
    }
    found = dict.fromkeys(token for token in [*by_key, *named] if token is not None)
    return [token for token in found if token not in without]
