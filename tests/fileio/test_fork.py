"""A store that was opened before a fork serves both processes: the child has connections, locks and threads of its own."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fileio import FileIO, FileIOError, RetryPolicy, SystemEnv, open_store

ONCE = RetryPolicy(attempts_max=1)
OPTIONS: Mapping[str, Callable[[str], tuple[str, Mapping[str, str]]]] = {
    "s3": lambda at: ("s3://bucket", {"endpoint": at, "region": "r", "anonymous": "yes"}),
    "gs": lambda at: ("gs://bucket", {"endpoint": at, "anonymous": "yes"}),
    "az": lambda at: ("az://bucket", {"endpoint": f"{at}/account", "anonymous": "yes"}),
}


@pytest.fixture
def ports() -> Iterator[tuple[str, list[int]]]:
    """A server that keeps connections open, and notes from which port each request comes."""
    seen: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            seen.append(self.client_address[1])
            self.send_response(403)
            self.send_header("Content-Length", "0")
            # Of an answer without it nothing is believed on Azure, and the connection is given up.
            self.send_header("x-ms-request-id", "1")
            self.end_headers()

        do_GET = do_HEAD = respond

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", seen
    server.shutdown()
    server.server_close()
    thread.join()


def in_child(act: Callable[[], None]) -> int:
    """The exit code of a forked process that runs `act`."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        act()
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may leave the child but by its exit
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(code)


def ask(store: FileIO) -> None:
    with pytest.raises(FileIOError):
        store.read("k")


@pytest.mark.parametrize("scheme", list(OPTIONS))
def test_a_child_has_connections_of_its_own(scheme: str, ports: tuple[str, list[int]]) -> None:
    at, seen = ports
    url, options = OPTIONS[scheme](at)
    with open_store(url, options, policy=ONCE) as store:
        ask(store)
        ask(store)
        parents = set(seen)
        seen.clear()
        assert in_child(lambda: ask(store)) == 0
        childs = set(seen)
        seen.clear()
        ask(store)
        assert len(parents) == 1 and childs and not parents & childs
        assert set(seen) <= parents


@pytest.mark.parametrize("scheme", ["memory", "file", *OPTIONS])
def test_locks_that_were_held_at_the_fork_do_not_stop_the_child(scheme: str, ports: tuple[str, list[int]], tmp_path: Path) -> None:
    url, options = OPTIONS[scheme](ports[0]) if scheme in OPTIONS else ("memory://forked" if scheme == "memory" else str(tmp_path), {})
    with open_store(url, options, policy=ONCE, env=SystemEnv(parallelism=2)) as store:
        ask(store)
        holders = [store.metrics, store._bare, getattr(store._bare, "_client", None), store.env._io]  # type: ignore[attr-defined]
        locks = [lock for holder in holders if (lock := getattr(holder, "_lock", None)) is not None]
        assert len(locks) >= (3 if scheme != "az" else 2)

        def act() -> None:
            ask(store)
            store.env.submit_io(store.metrics.snapshot).result()

        for lock in locks:
            lock.acquire()
        try:
            code = in_child(act)
        finally:
            for lock in locks:
                lock.release()
        assert code == 0
        ask(store)
