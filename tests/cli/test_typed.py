"""What is typed and pasted at a terminal: lines, blocks, commands and keys."""

import os
import pty
import select
import signal
import sys
import termios
import time
from pathlib import Path

import pytest

from snapexport.cli.chat import COMMANDS
from snapexport.cli.signals import Interrupts
from snapexport.cli.typed import Keyboard, command_of
from tests.patience import PATIENCE, is_waiting, until


def test_ctrl_c_is_noted_during_work_and_raised_while_waiting_for_input() -> None:
    interrupts = Interrupts()
    former = signal.getsignal(signal.SIGINT)
    with interrupts.as_notes():
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.came
        with pytest.raises(KeyboardInterrupt), interrupts.as_errors():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(PATIENCE)
    assert signal.getsignal(signal.SIGINT) == former


@pytest.mark.slow
def test_chat_on_a_terminal_edits_lines_and_ends_by_ctrl_d(chatting: Path) -> None:
    argv = ["chat", str(chatting), "--max-tokens", "4"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "snapexport", *argv])
    try:
        read_until(terminal, b"> ")
        os.write(terminal, b"no\x7fy\r")  # "ny", and two tokens of the template's
        assert b"4 prompt tokens" in read_until(terminal, b"tokens left")
        read_until(terminal, b"> ")
        os.write(terminal, b"/reset\r")
        read_until(terminal, b"> ")
        os.write(terminal, b"\x1b[200~a\r\tb\x1b[201~\r")  # as terminals bracket it
        assert b"6 prompt tokens" in read_until(terminal, b"tokens left")
        os.write(terminal, b"/reset\ra\r\tb\rc\r")  # a command, and a block without brackets
        assert b"8 prompt tokens" in read_until(terminal, b"tokens left")
        read_until(terminal, b"> ")
        os.write(terminal, b"dropped")
        read_until(terminal, b"dropped")
        time.sleep(0.2)  # Python misses a signal that comes just before it waits for a key
        until(lambda: is_waiting(pid))
        os.write(terminal, b"\x03")
        read_until(terminal, b"> ")
        os.write(terminal, b"\x04")
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        os.close(terminal)


@pytest.mark.parametrize(
    ("block", "command"),
    [
        ("/file a b", "/file"),
        ("/Quit ", "/quit"),
        ("/usr/bin is a folder", ""),
        (" /help", ""),
        ("/x\nof a pasted block", ""),
        ("what is /help", ""),
    ],
)
def test_a_line_is_a_command_if_its_first_word_may_be_one(block: str, command: str) -> None:
    assert command_of(block) == command


def test_keys_during_an_answer_are_not_shown_and_wait_for_the_next_line() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as terminal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", terminal)
        before = termios.tcgetattr(theirs)
        with Keyboard(Interrupts(), COMMANDS).hold():
            os.write(ours, b"typed ")
            os.write(ours, b"later\r")
            assert not select.select([ours], [], [], 0.2)[0]
            assert os.read(theirs, 100).endswith(b"later\n")
        assert termios.tcgetattr(theirs) == before
        os.write(ours, b"shown")
        assert os.read(ours, 100) == b"shown"
    os.close(ours)


def read_until(terminal: int, end: bytes, seconds: float = PATIENCE) -> bytes:
    """What the terminal shows up to `end`."""
    shown, last = b"", time.monotonic() + seconds
    while not shown.endswith(end):
        ready = select.select([terminal], [], [], max(0.0, last - time.monotonic()))[0]
        assert ready, f"{end!r} never came: {shown[-500:]!r}"
        shown += os.read(terminal, 1)
    return shown
