"""Engines that read the catalog, each in its own environment, with the settings that the page on the catalog shows."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devkit.engines import ENGINES
from devkit.environments import environment_dir

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "serve-a-rest-catalog.md"
SECURE_PAGE = PAGE.with_name("secure-a-rest-catalog.md")
PAGE_URL = "http://127.0.0.1:8181"
SECONDS_MAX = 420


def blocks_of_page(language: str, url: str, *, page: Path = PAGE) -> list[str]:
    """The blocks of a page in a language, with the URL of a server."""
    found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [block.replace(PAGE_URL, url) for block in found]


def settings_of_page(number: int, url: str) -> dict[str, str]:
    """The settings in one of its blocks of properties: of Spark the first, of Trino the second."""
    return dict(line.split("=", 1) for line in blocks_of_page("properties", url)[number].splitlines())


def run_statements(
    engine: str, folder: Path, statements: Sequence[str], *, begin: Sequence[str] = (), settings: Mapping[str, str] | None = None
) -> list[Any]:
    """The rows of each statement, or the text of its error."""
    folder.mkdir(exist_ok=True)
    found = ENGINES[engine]
    done = subprocess.run(
        [str(environment_dir(found.lock) / "bin" / "python"), "-W", "ignore", "-m", "tests.serve.engine_statements", engine, str(folder)],
        input=json.dumps({"settings": settings or {}, "begin": list(begin), "statements": list(statements)}),
        env={**found.environment(), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [answer.get("rows", answer.get("error")) for answer in json.loads(done.stdout)]
