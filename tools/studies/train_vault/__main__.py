"""Trains the vault's checkpoint on the CPU, and measures what it recalls.

Lengths grow as the model masters them; in the last stage long and short rows are mixed
and the learning rate falls to zero along the time that is left.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from snapexport.vault import prompts
from tools.studies.train_vault import group_dropout
from tools.studies.train_vault.rows import LONGEST, Batch, Shape, make_batch
from tools.studies.train_vault.spelling import EOS, check_words, save_tokenizer, train_tokenizer
from tools.studies.train_vault.start import build_model
from tools.studies.train_vault.window import window_loss

STAGES = (
    Shape(80, 3, terse=True),
    Shape(192, 8, terse=True),
    Shape(384, 12),
    Shape(768, 20),
    Shape(1344, 48, terse=True),
    Shape(LONGEST, 80, terse=True),
)
FINAL = (
    Shape(LONGEST, 80, terse=True),
    Shape(LONGEST, 48),
    Shape(LONGEST, 64, scattered=True),
    Shape(2080, 16),
    Shape(1120, 32, scattered=True),
    Shape(576, 12),
    Shape(288, 6),
    Shape(128, 2),
)
MASTERED = 0.97
WARM_UP_STEPS = 50


def predict(model: LlamaForCausalLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits at the taught places, and the input of the last layer.

    Only these places get logits because the vocabulary is a costly part.
    """
    output = model.model(batch.ids, output_hidden_states=True)
    hidden = output.last_hidden_state
    rows = torch.arange(len(hidden))[:, None]
    return model.lm_head(hidden[rows, batch.places]), output.hidden_states[-2]


class Trainer:
    """Holds what changes in the course of a run: stage, step, learning rate."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Make the tokenizer, the model and the optimizer from the arguments."""
        torch.manual_seed(args.seed)
        self.args = args
        self.rng = random.Random(prompts.FIRST_TRAINING_SEED + args.seed)
        self.tokenizer = train_tokenizer(LONGEST)
        check_words(self.tokenizer)
        self.model = build_model(self.tokenizer, args.width, args.layers, LONGEST)
        self.optimizer = self.new_optimizer()
        self.start = time.monotonic()
        self.final_start = math.inf
        self.stage = self.step = 0
        if args.resume:
            self.model = LlamaForCausalLM.from_pretrained(args.resume)
            self.optimizer = self.new_optimizer()
            self.stage, self.final_start = len(STAGES) - 1, 0.0
        group_dropout.install(self.model, args.silence)
        self.model.train()

    def new_optimizer(self) -> torch.optim.AdamW:
        """Make an optimizer of the model's present weights."""
        return torch.optim.AdamW(
            self.model.parameters(), lr=self.args.rate, betas=(0.9, 0.98), weight_decay=0.01
        )

    def seconds(self) -> float:
        """Return the time since the start."""
        return time.monotonic() - self.start

    def rate(self) -> float:
        """Warm up, hold, and in the last stage fall along a cosine of the time left."""
        warm: float = self.args.rate * min(1.0, (self.step + 1) / WARM_UP_STEPS)
        left: float = 60 * self.args.minutes - self.final_start
        if left <= 0:
            return warm
        done = min(1.0, (self.seconds() - self.final_start) / left)
        return warm * 0.5 * (1 + math.cos(math.pi * done))

    def train_step(self) -> tuple[int, float, float]:
        """Take one step; return its length, its loss and its accuracy by token."""
        final = self.stage == len(STAGES) - 1
        shape = self.rng.choice(FINAL) if final else STAGES[self.stage]
        batch = make_batch(self.tokenizer, self.rng, shape, self.args.tokens)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        logits, stream = predict(self.model, batch)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        taught = (
            self.args.window * window_loss(self.model, batch, stream) if self.args.window else 0
        )
        torch.autograd.backward(loss + taught)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return shape.length, loss.item(), (logits.argmax(-1) == batch.targets).float().mean().item()

    def advance(self, accuracy: float) -> None:
        """Go to the next stage once this one's length is mastered."""
        if accuracy > MASTERED and self.stage < len(STAGES) - 1:
            self.stage += 1
            if self.stage == len(STAGES) - 1:
                self.final_start = self.seconds()

    def run(self) -> None:
        """Train until the time is up, saving now and then."""
        mean = 0.0
        while self.seconds() < 60 * self.args.minutes:
            length, loss, accuracy = self.train_step()
            mean = 0.9 * mean + 0.1 * accuracy
            if self.step % 25 == 0:
                self.advance(mean)
            if self.step % self.args.report == 0:
                print(
                    f"{self.seconds():.0f}s step {self.step} T {length} loss {loss:.4f} "
                    f"accuracy {mean:.4f} rate {self.rate():.2e}",
                    flush=True,
                )
            if self.step % (10 * self.args.report) == 0:
                self.save()
        self.save()

    def save(self) -> None:
        """Write the checkpoint and its tokenizer."""
        self.model.save_pretrained(self.args.out)
        save_tokenizer(self.tokenizer, self.args.out)


@torch.no_grad()
def exact_match(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, length: int, count: int
) -> float:
    """Return the share of held-out prompts answered and ended right, greedily.

    One pass over prompt and answer decides this: greedy decoding gives the whole answer
    exactly if each of its tokens is the likeliest one after the right tokens before it.
    """
    right = 0
    places = torch.arange(length - 1, length + prompts.ANSWER_WORDS)[None]
    for seed in range(count):
        prompt = prompts.make_prompt(seed, length)
        ids = torch.tensor([tokenizer(prompt.text + prompt.answer + EOS).input_ids])
        batch = Batch(ids, places, ids.gather(1, places + 1))
        right += int((predict(model, batch)[0].argmax(-1) == batch.targets).all())
    return right / count


def main() -> None:
    """Train for the given minutes and report the exact match by length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--minutes", type=float, default=19.0, help="time for the training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="go on from here, in the last stage")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=2.5e-3, help="highest learning rate")
    parser.add_argument("--window", type=float, default=0.0, help="weight of window.py's loss")
    parser.add_argument(
        "--silence", type=float, default=0.0, help="share of rows in which a KV head is silent"
    )
    parser.add_argument("--tokens", type=int, default=4608, help="tokens in a step")
    parser.add_argument("--report", type=int, default=25, help="steps between two reports")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable_progress_bar()
    print(" ".join(f"--{name} {value}" for name, value in vars(args).items()), flush=True)
    trainer = Trainer(args)
    trainer.run()
    trainer.model.eval()
    for length in (256, 512, 1024, 2048):
        score = exact_match(trainer.model, trainer.tokenizer, length, 500)
        print(f"exact match of 500 held-out prompts of {length} tokens: {score:.4f}", flush=True)


if __name__ == "__main__":
    main()
