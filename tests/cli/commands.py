"""Commands as a user runs them: in this process, since every process of its own would import everything first, or in one of their own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from unittest import mock

from objcat.cli import main


def run(*arguments: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    """`objcat ARGUMENTS` in a terminal of so many columns."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", ["objcat", *arguments]))
        stack.enter_context(mock.patch.dict(os.environ, COLUMNS=str(columns)))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(errors))
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 0
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def run_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own: what only that shows are imports, the exit code, and no stack trace."""
    return subprocess.run([sys.executable, "-m", "objcat.cli", *arguments], capture_output=True, text=True, check=False, timeout=300)
