"""Free ports for servers that were not given one."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable

from nemo_gym.config.names import DEFAULT_PORT_RANGE


def port_is_free(host: str, port: int) -> bool:
    """Tell whether a server could listen on the address at this moment."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError:
        return False
    return True


def find_open_port(
    disallowed_ports: Iterable[int] | None = None,
    max_retries: int = 50,
    *,
    host: str = "127.0.0.1",
    port_range: tuple[int, int] = DEFAULT_PORT_RANGE,
) -> int:
    """Return a random free port in `port_range`, bounds included. Raises `RuntimeError` after `max_retries` tries."""
    taken = set(disallowed_ports or ())
    low, high = port_range
    for _ in range(max_retries):
        port = random.randint(low, high)
        if port not in taken and port_is_free(host, port):
            return port
    raise RuntimeError(f"no free port found in {low}..{high} after {max_retries} tries.")
