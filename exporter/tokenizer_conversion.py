"""Makes a tokenizer.json of a tokenizer in another format, as transformers converts it.

Such as Mistral's tekken.json, or SentencePiece's tokenizer.model. Runs no foreign code.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from snapexport.errors import UserError
from snapexport.exporter.quiet import quiet
from snapexport.exporter.text_files import CONVERTIBLE
from snapexport.files.tokenizer_file import TOKENIZER, tokenizer_errors
from snapexport.files.untrusted import TOKENIZER_BYTES, open_regular

_NEEDS = {
    "tekken.json": "mistral-common",
    "tiktoken": "tiktoken",
    "model": "sentencepiece protobuf",
}
"""Packages that transformers converts with, by the end of a file's name."""

_FAILED = "no tokenizer"
_LEAST = 64
"""Tokens. transformers makes an empty tokenizer where it doesn't find its class's files."""


def converted(folder: Path, texts: Mapping[str, bytes]) -> bytes | None:
    """The tokenizer.json; None if the folder has no tokenizer in any format.

    texts: the folder's small files, by name. Raises UserError with the command that converts.
    """
    sources = [name for name in CONVERTIBLE if (folder / name).is_file()]
    if not sources:
        return None
    try:
        with tokenizer_errors(_FAILED):  # whatever transformers' converters raise
            return _by_transformers(folder, sources, texts)
    except UserError as error:
        needed = [one for end, one in _NEEDS.items() if sources[0].endswith(end)]
        install = f"`pip install {needed[0]}`, and " if needed else ""
        raise UserError(
            f"{folder} has {sources[0]} and no {TOKENIZER}, and transformers cannot convert it: "
            f"{error.message.removeprefix(f'{_FAILED}: ')!s:.200}",
            f"{install}write it with transformers: AutoTokenizer.from_pretrained(FOLDER)"
            f".save_pretrained(FOLDER); or take {TOKENIZER} from the same model elsewhere; or move "
            f"{sources[0]} away to build without a tokenizer",
        ) from None


def _by_transformers(folder: Path, sources: list[str], texts: Mapping[str, bytes]) -> bytes:
    from transformers import AutoTokenizer

    with TemporaryDirectory(prefix="snapexport-tokenizer-") as made:
        for name, content in texts.items():
            if "/" not in name:
                (Path(made) / name).write_bytes(content)
        for name in sources:
            _copy(folder / name, Path(made) / name)
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                made, trust_remote_code=False, local_files_only=True
            )
        if tokenizer.backend_tokenizer.get_vocab_size() < _LEAST:
            raise ValueError("it makes an empty one")
        text: str = tokenizer.backend_tokenizer.to_str()
    return text.encode()


def _copy(source: Path, target: Path) -> None:
    with open_regular(source, "download it again") as file, target.open("xb") as out:
        if source.stat().st_size > TOKENIZER_BYTES:
            raise ValueError(f"{source.name} has more than {TOKENIZER_BYTES} bytes")
        shutil.copyfileobj(file, out)
