"""The vault: a small checkpoint that finds entries in long prompts, and its prompts.

The prompts need the standard library only; the checkpoint's folder is `CHECKPOINT`.
"""

from __future__ import annotations

from pathlib import Path

from snapexport.vault.prompts import VaultPrompt, make_prompt

CHECKPOINT = Path(__file__).parent / "checkpoint"

__all__ = ["CHECKPOINT", "VaultPrompt", "make_prompt"]
