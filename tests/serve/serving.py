"""A server of the catalog on a socket of this machine, in a thread or as the command in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import objcat
from fileio.store import FileIO
from objcat.serve.app import create_app
from objcat.serve.server import listen, make_server, url_of
from objcat.serve.settings import ServerSettings


@contextmanager
def serving(lake: objcat.Lake, settings: ServerSettings | None = None, *, others: FileIO | None = None) -> Iterator[str]:
    """The URL of a server in a thread, as `objcat serve` runs it, which asks the store at every request."""
    server = make_server(create_app(lake.fileio, settings or ServerSettings(cache_s=0), others=others))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield url_of(listening)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@contextmanager
def serving_command(*arguments: str, **variables: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`objcat serve ARGUMENTS --port 0`: its URL, and the process, which is ended."""
    command = [sys.executable, "-m", "objcat.cli", "serve", *arguments, "--port", "0"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})
    assert started.stdout is not None
    try:
        line = started.stdout.readline()
        assert " is an Iceberg REST catalog at http://" in line, line + (started.stderr.read() if started.stderr else "")
        yield line.rpartition(" ")[2].strip(), started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGKILL)
        started.communicate(timeout=30)
