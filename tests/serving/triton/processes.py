"""The server's processes, from /proc."""

from pathlib import Path

from tests.serving.triton.server import Server


def backend_of(server: Server, model: str) -> int:
    """The process id of a model's Python backend."""
    (found,) = [pid for pid in _children(server.pid) if f"/{model}/1/model.py" in _command(pid)]
    return found


def _children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
