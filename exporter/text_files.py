"""The small files of a checkpoint: what a build copies, and what else is read or told of.

One table for both ways to a checkpoint: folders are read by it, and the Hub is asked for it.
"""

from snapexport.files.tokenizer_file import TOKENIZER
from snapexport.files.untrusted import CONFIG_BYTES, TEMPLATE_BYTES, TOKENIZER_BYTES

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
PROCESSORS_TEMPLATE = "chat_template.json"
"""Where processors of images had it, as the one field of an object."""
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"

COPIED = {
    CONFIG: CONFIG_BYTES,
    TOKENIZER: TOKENIZER_BYTES,
    TOKENIZER_CONFIG: CONFIG_BYTES,
    CHAT_TEMPLATE: TEMPLATE_BYTES,
    f"{MORE_TEMPLATES}/tool_use.jinja": TEMPLATE_BYTES,
    GENERATION_CONFIG: CONFIG_BYTES,
}
"""{name: the most bytes of it} of what a build has too."""
READ = COPIED | {
    PROCESSORS_TEMPLATE: TEMPLATE_BYTES << 1,
    SPECIAL_TOKENS_MAP: CONFIG_BYTES,
    ADDED_TOKENS: CONFIG_BYTES,
}
"""With those whose content goes into the copies of others."""
CONVERTIBLE = (
    "tekken.json",
    "tokenizer.model",
    "tiktoken.model",
    "spiece.model",
    "tokenizer.model.v3",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "qwen.tiktoken",
)
"""Tokenizers in other formats, of which transformers or its friends make a tokenizer.json."""
