"""Asks OpenVINO GenAI for facts of a text after its eviction, by the prompts of two_facts.

usage: python -m tools.studies.quality.peer_late MODEL --documents DOMAIN=FOLDER ... \
           --openvino-python PEER/bin/python --out FILE [--kept N]

MODEL: a directory in OpenVINO's form, with the tokenizer.json of our build. GenAI takes no tokens
after eviction but its own, so a grammar makes it write the question; what follows is free, and
greedy. The prompt is the text, and without --kept nothing is evicted. It calculates in bf16.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

WINDOW, MOST = 8, 120
"""Tokens that vote, GenAI's default, and those of a question with its answer."""


def answers(model: Path, kept: int, threads: int) -> None:
    """In GenAI's Python: for each line of a prompt and questions, a line of what was written."""
    from tools.studies.speed.peers.openvino_peer import OpenVino

    peer = OpenVino(model, "bf16", threads, kept or None, WINDOW)
    for line in sys.stdin:
        given = json.loads(line)
        written = []
        for question in given["questions"]:
            pattern = re.sub(r"\\([\n ])", r"\1", re.escape(question)) + r"[^\n]{1,36}\n"
            written.append(peer.write(given["prompt"], pattern, MOST).removeprefix(question))
        print(json.dumps(written), flush=True)


def measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    """What is found late, of each text."""
    from tokenizers import Tokenizer

    from tools.studies.quality.two_facts import samples, texts_of

    folders = dict(one.split("=", 1) for one in given.documents)
    domains = {k: texts_of(Path(v), given.samples, given.tokens) for k, v in folders.items()}
    tokenizer = Tokenizer.from_file(str(given.model / "tokenizer.json"))
    line = [str(given.openvino_python), "-m", "tools.studies.quality.peer_late"]
    line += [str(given.model), "--answer"]
    line += ["--kept", str(given.kept), "--threads", str(given.threads)]
    found = []
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin and peer.stdout
        for one in samples(domains, tokenizer, given.tokens):
            asked = {
                kind: tuple(tokenizer.decode(ids, skip_special_tokens=False) for ids in both)
                for kind, both in one.questions.items()
            }
            questions = [question for question, _ in asked.values()]
            print(
                json.dumps({"prompt": one.prompt, "questions": questions}),
                file=peer.stdin,
                flush=True,
            )
            written = json.loads(peer.stdout.readline())
            pairs = zip(asked.items(), written, strict=True)
            found.append(
                {f"late {kind}": float(got.startswith(right)) for (kind, (_, right)), got in pairs}
            )
            print(found[-1], flush=True)
        peer.stdin.close()
    return found


def main() -> None:
    """Print each text's figures, and write their means."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--documents", nargs="+", default=[], metavar="DOMAIN=FOLDER")
    parser.add_argument("--openvino-python", type=Path)
    parser.add_argument("--kept", type=int, default=0, help="tokens, a multiple of 32")
    parser.add_argument("--samples", type=int, default=7, help="texts of each domain")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--answer", action="store_true", help="be the peer")
    given = parser.parse_args()
    if given.answer:
        answers(given.model, given.kept, given.threads)
        return
    from tools.studies.quality.two_facts import summary

    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    name = f"OpenVINO GenAI, evicting to {given.kept}" if given.kept else "OpenVINO GenAI"
    results[name] = summary(measured(given))
    given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
