"""Copies ranges of files: by reflink where the file system can, else block by block, keeping holes.

A reflink shares bytes on the disk until one of the files is written to, so it takes no time and no
space. Does not know what the bytes mean.
"""

import errno
import fcntl
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

CLONE_BLOCK = 4096
"""Reflinks begin and end at multiples of this block size, in both files."""

_FICLONERANGE = 0x4020940D  # of linux/fs.h: struct file_clone_range {s64 fd; u64 from, length, to}
_STEP = 1 << 24

Report = Callable[[int], None]
"""Called with the number of bytes just copied."""
Seen = Callable[[bytes], object]
"""Called with all bytes that pass through memory, in order."""


def _ignore(_: object) -> None:
    pass


def copy_range(
    source: int,
    begin: int,
    end: int,
    target: int,
    at: int,
    report: Report = _ignore,
    seen: Seen = _ignore,
) -> bool:
    """Copy bytes [begin, end) of one open file to `at` in another; True if `seen` got all of them.

    source, target: file descriptors. If (begin - at) is a multiple of CLONE_BLOCK and the file
    system can, whole blocks are shared and not passed to `seen`.
    """
    os.ftruncate(target, max(os.fstat(target).st_size, at + end - begin))
    first = -(-begin // CLONE_BLOCK) * CLONE_BLOCK
    last = end if end == os.fstat(source).st_size else end // CLONE_BLOCK * CLONE_BLOCK
    shift = at - begin
    if shift % CLONE_BLOCK or first >= last or not _clone(source, first, last, target, shift):
        return _copy(source, begin, end, target, shift, report, seen)
    _copy(source, begin, first, target, shift, report, _ignore)
    report(last - first)
    _copy(source, last, end, target, shift, report, _ignore)
    return False


def copy_file(source: Path, target: Path, report: Report = _ignore) -> None:
    """Copy a file to a new one, with its permissions."""
    with source.open("rb") as old, target.open("xb") as new:
        copy_range(old.fileno(), 0, source.stat().st_size, new.fileno(), 0, report)
    shutil.copymode(source, target)


def clone_file(source: Path, target: Path) -> bool:
    """Copy a file to a new one by reflink; without reflinks return False and make no file."""
    with source.open("rb") as old, target.open("xb") as new:
        size = source.stat().st_size
        os.ftruncate(new.fileno(), size)
        done = _clone(old.fileno(), 0, size, new.fileno(), 0)
    if not done:
        target.unlink()
    return done


def _clone(source: int, begin: int, end: int, target: int, shift: int) -> bool:
    request = struct.pack("qQQQ", source, begin, end - begin, begin + shift)
    try:
        fcntl.ioctl(target, _FICLONERANGE, request)
    except OSError:  # no reflinks here; any other fault shows when the bytes are copied
        return False
    return True


def _copy(
    source: int, begin: int, end: int, target: int, shift: int, report: Report, seen: Seen
) -> bool:
    """Copy bytes [begin, end) to begin + shift; True if there was no hole."""
    whole, position = True, begin
    while position < end:
        data = _next_data(source, position, end)
        if data > position:
            whole = False
            report(data - position)
            position = data
            continue
        stop = min(os.lseek(source, position, os.SEEK_HOLE), end, position + _STEP)
        block = os.pread(source, stop - position, position)
        if not block:
            raise OSError("a file became shorter while it was copied")
        _write(target, block, position + shift)
        seen(block)
        report(len(block))
        position += len(block)
    return whole


def is_hole(source: int, begin: int, end: int) -> bool:
    """Whether bytes [begin, end) of an open file have no place on the disk: they are zeros."""
    return _next_data(source, begin, end) == end


def _next_data(source: int, position: int, end: int) -> int:
    """Offset of the next data at or after `position`, at most `end`."""
    try:
        return min(os.lseek(source, position, os.SEEK_DATA), end)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return end  # the rest is a hole


def _write(target: int, block: bytes, at: int) -> None:
    written = 0
    while written < len(block):
        written += os.pwrite(target, block[written:] if written else block, at + written)
