"""moto as a server with atomic writes of one key, which moto alone does not promise.

The body is read before the lock is taken, so a slow uploader blocks nobody.
"""

from __future__ import annotations

import io
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple


class LockedByPath:
    """A WSGI application that runs at most one mutation of a path at a time."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._guard = threading.Lock()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE"):
            return self._inner(environ, start_response)  # type: ignore[no-any-return]
        if length := int(environ.get("CONTENT_LENGTH") or 0):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self._guard:
            lock = self._locks[environ["PATH_INFO"]]
        with lock:
            return list(self._inner(environ, start_response))


if __name__ == "__main__":
    application = LockedByPath(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=MotoRequestHandler)
