"""Numbers as people write them: 32k tokens, a quarter of L_max, 16GiB."""

import argparse

import pytest

from snapexport.cli import flags
from snapexport.cli.app import parser


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("32k", 32768), ("128K", 131072), ("1.5k", 1536), ("1m", 1 << 20), ("-1", -1)],
)
def test_tokens_are_counted_by_1024(text: str, count: int) -> None:
    assert flags.tokens(text) == flags.budget(text) == count


@pytest.mark.parametrize(
    ("text", "slots"), [("1/4", 250), ("25%", 250), ("0.25", 250), (".5", 500), ("1/2000", 1)]
)
def test_budgets_are_parts_of_the_longest_prompt(text: str, slots: int) -> None:
    given = argparse.Namespace(kv_budget=flags.budget(text), budgets=[flags.budget(text), 8])
    read = flags.values(given, ["kv_budget", "budgets"], L_max=1000)
    assert read == {"kv_budget": slots, "budgets": (slots, 8)}


@pytest.mark.parametrize("text", ["", "k", "1.3", "32kb", "1.0003k", "1/0", "-1/4", "1/4k", "x%"])
def test_what_is_not_a_number_of_tokens_is_refused(text: str) -> None:
    for kind in flags.tokens, flags.budget:
        with pytest.raises(argparse.ArgumentTypeError, match="is not a number of tokens"):
            kind(text)


def test_every_command_takes_these_units() -> None:
    build = "build --model m --out b --L-max 32k --kv-budget 1/4 --prefill-chunk 1k --K 1/8"
    for words in (
        build,
        "plan --model m --L-max 32k --kv-budget 1/4 --memory 16GiB",
        "generate b --prompt x --max-tokens 1k",
        "chat b --max-tokens 1k --compress-every 1k",
        "eval b --lengths 4k 8k --budgets 1/8 1/16 --continuation 1k",
        "bench b --contexts 4k 8k",
        "calibrate b --documents d --out o --length 2k",
        "diff b --lengths 1k --steps 1k",
        "engine b --workspace 8GiB",
        "serve b --token-budget 1k --parked-dir-bytes 8GiB --max-tokens 2k",
        "demo --kv-budget 1/8",
    ):
        parser().parse_args(words.split())
