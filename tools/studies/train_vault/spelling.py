"""Trains the vault's tokenizer: a byte-level BPE in which each of its words is one token.

The full byte alphabet is kept, so any text of any language encodes and decodes without
loss; only the vault's words get merges, each both at a line's start and after a space.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from snapexport.vault.prompts import ALL_WORDS

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
# The trainer stops by itself once every word of the corpus is one token.
VOCABULARY_LIMIT = 4096


def train_tokenizer(longest: int = 2304) -> PreTrainedTokenizerFast:
    """Train on the word list, and add the first token by the post-processor."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(_corpus(), _trainer())
    bos = (BOS, tokenizer.token_to_id(BOS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[bos]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
    )


def _corpus() -> list[str]:
    """Write each word at a line's start and after a space."""
    return [f"{word}\n" for word in ALL_WORDS] + [f" {word}\n" for word in ALL_WORDS]


def _trainer() -> trainers.BpeTrainer:
    """Configure the trainer: all bytes first, and merges for words seen only once."""
    return trainers.BpeTrainer(
        vocab_size=VOCABULARY_LIMIT,
        min_frequency=1,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def check_words(tokenizer: PreTrainedTokenizerFast) -> None:
    """Stop unless each word is one token in both of its forms."""
    for word in ALL_WORDS:
        for text in (word, f" {word}"):
            if len(tokenizer.encode(text, add_special_tokens=False)) != 1:
                raise SystemExit(f"{text!r} is not one token")


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save under the class name that is known outside this release of transformers, too."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=2) + "\n")


def main() -> None:
    """Train, check and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    folder: Path = parser.parse_args().out
    tokenizer = train_tokenizer()
    check_words(tokenizer)
    save_tokenizer(tokenizer, folder)
    print(f"{len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
