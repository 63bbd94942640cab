"""`run_server`: the catalog of a lake on a socket, by uvicorn, until the process is told to end."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from fileio.store import FileIO
from objcat.catalog.catalog import Catalog
from objcat.errors import InvalidInput
from objcat.serve.app import create_app
from objcat.serve.settings import ServerSettings

KEEP_ALIVE_S = 75
GRACE_S = 10
"""How many seconds requests under way may still take when the server ends."""
HEAD_BYTES_MAX = 32 * 1024
"""The most bytes of a request's line and headers."""
BACKLOG = 1024


def run_server(
    lake: FileIO,
    settings: ServerSettings,
    *,
    host: str,
    port: int,
    started: Callable[[str], None],
    access_log: bool,
    others: FileIO | None = None,
    catalog: Catalog | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. Requests under way are answered first.

    Args:
        lake: the opened prefix of the lake.
        settings: how to answer.
        host: the address to listen at.
        port: 0 lets the system choose one.
        started: called with the URL as soon as clients can connect.
        access_log: whether each request is a line in the log `uvicorn.access`.
        others, catalog: see `create_app`.

    Raises:
        InvalidConfig, Unsupported: see `create_app`.
        OSError: the address cannot be used.
        KeyboardInterrupt: a signal ended the server, in good order.
    """
    server = make_server(create_app(lake, settings, others=others, catalog=catalog), access_log=access_log)
    with listen(host, port) as listening:
        started(url_of(listening))
        server.run(sockets=[listening])


def check_lake(lake: FileIO, catalog: Catalog) -> bool:
    """Whether a lake has names. So wrong credentials and wrong URLs end a server before it starts.

    Raises:
        InvalidInput: there is a table without a lake instead.
        FileIOError, PluginFailed: the store or the catalog of names failed.
    """
    catalog.refresh()
    if catalog.slot < 0 and next(lake.list_keys("log/"), None) is not None:
        raise InvalidInput(f"{lake.url} is a table without a lake, which has no name. Serve a lake, and create or import the table there.")
    return catalog.slot >= 0


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Connections inherit it. Without it the body of an answer waits up to 40 ms for the client's receipt of the head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def url_of(listening: socket.socket) -> str:
    """The URL of a socket that takes connections."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def make_server(app: ASGIApp, *, access_log: bool = False) -> uvicorn.Server:
    """A server for the sockets that are passed to its `run`."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=access_log,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
    )
