"""The socket that a server listens on."""

from __future__ import annotations

import errno
import socket

from scheduler.errors import ConfigError, UserError

_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before a model is loaded in vain; port 0 takes a free one. Clients that come early wait.

    Raises:
        UserError: the address is in use, or not ours.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise _bind_error(host, port, error) from error


def url_of(listener: socket.socket) -> str:
    """Where clients find it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind_error(host: str, port: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} of {host} is in use; choose another with --port (0 takes a free one)")
    if error.errno == errno.EACCES:
        return ConfigError(f"port {port} may not be used by this user; choose one from 1024 up with --port")
    return ConfigError(f"cannot listen on {host}, port {port}: {error.strerror}")
