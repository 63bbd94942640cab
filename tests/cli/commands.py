"""Commands as a user runs them, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*arguments: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    """`objcat ARGUMENTS` in a terminal of so many columns."""
    command = [sys.executable, "-m", "objcat.cli", *arguments]
    environment = {**os.environ, "COLUMNS": str(columns)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
