"""`./dev servers`: test servers that run until Ctrl-C."""

from __future__ import annotations

import difflib
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.table import Table

from devkit.databases import DATABASES, DatabaseServer
from devkit.handle import ServerHandle
from devkit.kafka import KAFKA_SERVERS, KafkaServers
from devkit.servers import SERVERS, ServerError, Servers


def serve(arguments: Sequence[str]) -> int:
    """Start all servers, or those named, show how to reach them, and run them until Ctrl-C or SIGTERM."""
    known = [*SERVERS, *DATABASES, *KAFKA_SERVERS]
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
            print(f"dev servers: There is no server {name!r}. {hint}", file=sys.stderr)
            return 2
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Servers() as servers, ExitStack() as databases:
        try:
            handles = []
            for name in SERVERS:
                if not arguments or name in arguments:
                    with console.status(f"starting {name}"):
                        handles.append(servers.start(name))
            if handles:
                _show(console, handles)
            others: dict[str, tuple[Callable[[], DatabaseServer | KafkaServers], str]] = {**DATABASES, **KAFKA_SERVERS}
            for name, (make, about) in others.items():
                if not arguments or name in arguments:
                    with console.status(f"starting {name}"):
                        database = make()
                        databases.enter_context(database)
                    console.print(f"\n[bold]{name}[/bold]: {about}", highlight=False)
                    console.print(f"  {database.connection()}", highlight=False, markup=False)
            console.print("\nThe keys are for servers on loopback only. Ctrl-C stops all servers and removes their data.")
            sys.stdout.flush()
            while True:
                signal.pause()
        except ServerError as error:
            print(f"dev servers: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 0


def _show(console: Console, handles: Sequence[ServerHandle]) -> None:
    """Print a table that fits 80 columns. Then print, for each server, its purpose and how to reach it."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("server", "URL", "endpoint"):
        table.add_column(column, no_wrap=True)
    for handle in handles:
        table.add_row(handle.name, handle.url, handle.endpoint)
    console.print(table)
    for handle in handles:
        about = next(server.about for name, server in SERVERS.items() if name == handle.name)
        console.print(f"\n[bold]{handle.name}[/bold]: {about}", highlight=False)
        console.print(f"  open_store({handle.url!r}, {dict(handle.options)!r})", highlight=False, markup=False)
        for name, value in handle.environment.items():
            console.print(f"  export {name}={shlex.quote(value)}", highlight=False, markup=False)
