"""The server's processes, from /proc."""

from pathlib import Path

from tests.serving.triton.server import Server


def backend_of(server: Server, model: str) -> int:
    """The process id of a model's Python backend."""
    (found,) = [pid for pid in _children(server.pid) if f"/{model}/1/model.py" in _command(pid)]
    return found


def resident_bytes(pid: int) -> int:
    """Memory of a process, as `ps` tells it."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def state_of(pid: int) -> str:
    """Such as "S (sleeping): python3 in futex_wait": its state, and where each thread waits."""
    status = Path(f"/proc/{pid}/status").read_text()
    (state,) = [line.split(":", 1)[1].strip() for line in status.splitlines() if "State:" in line]
    threads = Path(f"/proc/{pid}/task").iterdir()
    waits = [f"{_read(one / 'comm')} in {_read(one / 'wchan')}" for one in threads]
    return f"{state}: {', '.join(waits)}"


def _read(file: Path) -> str:
    return file.read_text().strip()


def _children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
