"""What the bundled checkpoint remembers of 2,048 tokens, by cache: the table in docs/vault.md.

Runs the built graphs through the runtime, prompts from seeds that were never trained on. Ends with
one JSON line.
"""

import argparse
import json
import tempfile
from pathlib import Path

from snapexport import LLM, SamplingParams
from snapexport.building import build
from snapexport.vault import CHECKPOINT, VaultPrompt, make_prompt

FIRST_SEED = 500_000
TOKENS = 2048
PARAMS = SamplingParams(max_tokens=12, stop=("\n",))


def main() -> None:
    """Measure the full cache, then SnapStream and streaming at equal slots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--slots", type=int, nargs="+", default=[512, 256, 128, 64])
    arguments = parser.parse_args()
    prompts = [make_prompt(FIRST_SEED + i, TOKENS) for i in range(arguments.prompts)]
    rows: list[dict[str, object]] = []
    policies = [("full", None)]
    policies += [(policy, n) for n in arguments.slots for policy in ("snapstream", "streaming")]
    for policy, slots in policies:
        recall = exact_match(arguments.checkpoint, policy, slots, prompts)
        rows.append({"policy": policy, "slots": slots or TOKENS, "exact_match": round(recall, 4)})
        print(rows[-1], flush=True)
    print(json.dumps({"prompts": arguments.prompts, "tokens": TOKENS, "rows": rows}))


def exact_match(
    checkpoint: Path, policy: str, slots: int | None, prompts: list[VaultPrompt]
) -> float:
    """Share of the prompts whose four words come out right, greedily."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "b"
        build(checkpoint, out, L_max=TOKENS + 16, policy=policy, kv_budget=slots, batch=2)
        completions = LLM(out).generate([prompt.text for prompt in prompts], PARAMS)
    pairs = zip(completions, prompts, strict=True)
    return sum(completion.text == prompt.answer for completion, prompt in pairs) / len(prompts)


if __name__ == "__main__":
    main()
