"""The socket that the API will listen on: had before the build is loaded, or refused then."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from snapexport.contract.errors import UserError


@contextmanager
def bound(host: str, port: int, flag: str) -> Iterator[socket.socket]:
    """A socket that has its address, and does not listen yet. Raises UserError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise UserError(
            f"--host {host}: {error.strerror}", "use an address of this machine"
        ) from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise refused(host, port, flag, error) from None
        yield listener


def refused(host: str, port: int, flag: str, error: BaseException | None) -> UserError:
    """What the system says of an address that can't be had."""
    reason = error.strerror if isinstance(error, OSError) else error
    hint = f"choose another {flag}; 0: a free one"
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        hint = "use an address of this machine for --host"
    return UserError(f"{flag} {port} on {host}: {reason}", hint)
