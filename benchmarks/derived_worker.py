"""Serves the requests of `benchmarks.derived_peers` in the process of another tool. Needs Python only."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def serve(answers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests, each a line of JSON, until the pipe closes. Standard output is the pipe, so all other output goes to stderr.

    answers: by the name of a request, what takes its arguments.
    """
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            said = {"ok": True, "found": answers[request.pop("do")](**request)}
        except Exception as error:  # noqa: BLE001 - Java raises here, and the caller must know the error
            traceback.print_exc()
            said = {"ok": False, "error": f"{type(error).__name__}: {str(error).strip()[:2000]}"}
        pipe.write(json.dumps(said) + "\n")
        pipe.flush()
