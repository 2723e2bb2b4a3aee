"""Renames that never replace anything (renameat2 of Linux), and exchanges of two names.

File systems without them, such as NFS, get the nearest that `rename` and `mkdir` give.
"""

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Any

_AT_FDCWD = -100
_NOREPLACE, _EXCHANGE = 1, 2
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})


def rename_new(source: Path, target: Path) -> None:
    """Rename a directory to a name that nothing has. Raises FileExistsError.

    Without renameat2 the name is taken by an empty directory first: a kill in between leaves that.
    """
    if _renameat2(source, target, _NOREPLACE):
        return
    target.mkdir()
    try:
        source.rename(target)  # over a directory only if it is empty, by POSIX
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        raise


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the file system can't, and nothing is changed."""
    return _renameat2(one, other, _EXCHANGE)


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    function = _function()
    if function is None:
        return False
    if function(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(source), None, str(target))


@cache
def _function() -> Any:
    """renameat2 of the C library; None in one that is older than glibc 2.28."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        at = (ctypes.c_int, ctypes.c_char_p)
        function.argtypes = [*at, *at, ctypes.c_uint]
    return function
