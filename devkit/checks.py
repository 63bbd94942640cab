"""`./dev check` and `./dev format`: checks of every file that do not run the product."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from devkit import toolchain
from devkit.pages import write_modules
from devkit.paths import ROOT, cache_dir

SOURCES = ("fileio", "objcat", "pyspark_objcat", "dbt-objcat", "devkit", "tests", "benchmarks", "examples")


def check() -> int:
    """Run every check, also after one has failed. Returns 1 when any failed."""
    cache = _tree_cache()
    sources = _existing_sources()
    pages = write_modules(cache / "pages")
    checks: dict[str, list[str]] = {
        "ruff format": ["ruff", "format", "--check", "--cache-dir", f"{cache}/ruff", *sources],
        "ruff check": ["ruff", "check", "--cache-dir", f"{cache}/ruff", *sources],
        "mypy": ["mypy", "--cache-dir", f"{cache}/mypy", *sources],
        "mypy of the pages": ["mypy", "--cache-dir", f"{cache}/mypy", *pages],
        "lint-imports": ["lint-imports", "--cache-dir", f"{cache}/imports"],
    }
    failed = [name for name, command in checks.items() if not _passes(name, command, names=pages)]
    print(f"dev check: {', '.join(failed)} failed." if failed else f"dev check: All {len(checks)} passed.", flush=True)
    return 1 if failed else 0


def format_sources() -> int:
    """Format every file and apply ruff's safe fixes."""
    sources = _existing_sources()
    cache = ["--cache-dir", f"{_tree_cache()}/ruff"]
    _passes("ruff check", ["ruff", "check", "--fix", "--quiet", *cache, *sources])
    return 0 if _passes("ruff format", ["ruff", "format", *cache, *sources]) else 1


def _passes(name: str, command: Sequence[str], *, names: Mapping[str, str] | None = None) -> bool:
    """Run a tool. Files in its output have the names in `names`, if any."""
    print(f"== {name}", flush=True)
    environment = toolchain.run_environment()
    run = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    said = run.stdout
    for file, shown in (names or {}).items():
        said = said.replace(os.path.relpath(file, ROOT), shown).replace(file, shown)
    print(said, end="", flush=True)
    return run.returncode == 0


def _existing_sources() -> list[str]:
    """The folders that hold Python files: tools fail on an empty folder."""
    return [name for name in SOURCES if any((ROOT / name).rglob("*.py"))]


def _tree_cache() -> Path:
    """A cache for each clone, outside of it, so that a clone may be read-only."""
    return cache_dir() / "checks" / hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:12]
