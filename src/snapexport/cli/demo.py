"""Build the bundled checkpoint and let it answer a long prompt, with the full cache and with ours.

The checkpoint is a small Llama that was trained to look up entries of a register ("vault"). The
demo builds it, asks for one entry with each cache, and shows what was remembered and what was kept.

example:
  snapexport demo --kv-budget 128 --seed 7
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

from snapexport.builder import BuildOptions
from snapexport.builder import run as run_build
from snapexport.cli import demo_ask, demo_view
from snapexport.cli.console import BuildProgress
from snapexport.cli.summary import print_summary
from snapexport.contract.build_directory import Build
from snapexport.contract.errors import UserError
from snapexport.vault import CHECKPOINT, VaultPrompt, make_prompt

HELP = "the bundled checkpoint answers a long prompt, with the full cache and with SnapStream"
PROMPT_TOKENS = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The cache, the prompt, and where the build goes."""
    parser.add_argument(
        "--kv-budget", type=int, default=256, metavar="N", help="slots of the cache (default: 256)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="another prompt (default: 1)"
    )
    parser.add_argument(
        "--more", type=int, default=8, metavar="N", help="further prompts to count (default: 8)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the build here")
    parser.add_argument("--json", action="store_true", help="print one JSON list at the end")


def run(arguments: argparse.Namespace) -> int:
    """Build, ask with each cache, and show it as it comes."""
    prompts = [
        make_prompt(arguments.seed + i, PROMPT_TOKENS) for i in range(1 + max(0, arguments.more))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        build = _build(arguments.out, Path(scratch), arguments.kv_budget)
        if arguments.json:
            answers = [
                demo_ask.ask(build, baseline, prompts, _keep_silent) for baseline in (True, False)
            ]
            print(json.dumps([answer.report() for answer in answers]))
        else:
            _show(build, prompts)
    return 0


def _build(kept: Path | None, scratch: Path, kv_budget: int) -> Build:
    """The bundled checkpoint's build, in `kept` if the user wants it."""
    if kept is not None and os.path.lexists(kept):
        raise UserError(f"{kept} exists already", "choose another --out")
    options = BuildOptions(
        model=str(CHECKPOINT),
        out=kept or scratch / "vault.build",
        L_max=PROMPT_TOKENS + demo_ask.ANSWER_TOKENS,  # the full cache has to hold the answer too
        kv_budget=kv_budget,
        batch=1,
        baseline=True,
    )
    with BuildProgress() as progress:
        return run_build(options, progress)


def _show(build: Build, prompts: list[VaultPrompt]) -> None:
    print_summary(build)
    demo_view.print_prompt(prompts[0])
    for baseline in (True, False):
        demo_view.print_cache(demo_ask.cache_name(build, baseline))
        answer = demo_ask.ask(build, baseline, prompts, demo_view.print_text)
        demo_view.print_answer(answer)
        if answer.kept:
            demo_view.print_kept(build, answer.kept, prompts[0].tokens)


def _keep_silent(_: str) -> None:
    """What --json tells while the answer comes."""
