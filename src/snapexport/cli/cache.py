"""Show what a folder of --prompt-cache holds of each build, or clear it.

Other files stay. Servers may use the folder meanwhile.

examples:
  snapexport cache list ~/.cache/snapexport
  snapexport cache clear ~/.cache/snapexport --json
"""

import argparse
import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from snapexport.cli.console import OUT
from snapexport.contract.memory import spelled
from snapexport.errors import UserError
from snapexport.runtime.prompt_store.contents import Kept, contents
from snapexport.runtime.prompt_store.folder import KeyedFolder

HELP = "show or clear a folder of --prompt-cache"
LIST, CLEAR = "list", "clear"
_DIGITS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to do, and the folder."""
    parser.add_argument("action", choices=(LIST, CLEAR), metavar="ACTION", help="list or clear")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of --prompt-cache")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print what the folder holds, or what was removed."""
    folder: Path = arguments.folder
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", "name the folder of --prompt-cache")
    if arguments.action == CLEAR:
        files, nbytes = KeyedFolder(folder).clear()
        if arguments.json:
            print(json.dumps({"folder": str(folder), "removed": files, "bytes": nbytes}))
        else:
            OUT.print(f"removed {files:,} chunks, {spelled(nbytes)}")
        return 0
    found = contents(folder)
    if arguments.json:
        total = sum(kept.nbytes for kept in found)
        builds = [asdict(kept) for kept in found]
        print(json.dumps({"folder": str(folder), "bytes": total, "builds": builds}))
        return 0
    for kept in found:
        OUT.print(_line(kept))
    if not found:
        OUT.print(f"{folder} holds no chunks")
    return 0


def _line(kept: Kept) -> str:
    name = f"build {kept.build[:_DIGITS]}" if kept.build else "unreadable files"
    used = datetime.fromtimestamp(kept.used).astimezone()
    return (
        f"{name}: {kept.chunks:,} chunks, {spelled(kept.nbytes)}, prompts of up to "
        f"{kept.longest:,} tokens, used {used:%Y-%m-%d %H:%M}"
    )
