"""`./dev lock`: `requirements/*.in` to `requirements/*.lock`, with a hash of every file and no trace of its origin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from devkit import toolchain
from devkit.paths import REQUIREMENTS, ROOT

_OPTIONS = (
    "--quiet",
    "--generate-hashes",
    "--allow-unsafe",
    "--strip-extras",
    *(f"--no-emit-{what}" for what in ("index-url", "find-links", "options")),
)
_PYTHON = (3, 11)


def write_locks(names: Sequence[str] = ()) -> int:
    """Resolve every input again, or the named ones. Locked versions stay where they still fit. Needs Python 3.11. Returns 1 on failure."""
    if sys.version_info[:2] != _PYTHON:
        print(f"dev lock: The locks need Python 3.11, but this is {sys.version.split()[0]}. Put python3.11 on PATH.", file=sys.stderr)
        return 1
    known = {source.stem: source for source in sorted(REQUIREMENTS.glob("*.in"))}
    if unknown := [name for name in names if name not in known]:
        print(f"dev lock: There is no requirements/{unknown[0]}.in. There are {', '.join(known)}.", file=sys.stderr)
        return 1
    environment = {**os.environ, "CUSTOM_COMPILE_COMMAND": "./dev lock"}
    for source in [known[name] for name in names or known]:
        target = source.with_suffix(".lock")
        command = [
            sys.executable,
            "-m",
            "piptools",
            "compile",
            *_OPTIONS,
            "-o",
            str(target.relative_to(ROOT)),
            str(source.relative_to(ROOT)),
        ]
        if subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            print(f"dev lock: {source.name} could not be resolved. pip's message is above.", file=sys.stderr)
            return 1
    return 0 if names else _write_npm_locks()


def _write_npm_locks() -> int:
    """Write the locks of npm, without fields that only a registry and its readers need: origin, funding, licence."""
    for directory in sorted(path.parent for path in REQUIREMENTS.glob("*/package.json")):
        command = [*toolchain.npm(), "install", "--package-lock-only", "--no-audit", "--no-fund"]
        if subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            print(f"dev lock: {directory.name}/package.json could not be resolved. npm's message is above.", file=sys.stderr)
            return 1
        lock = directory / "package-lock.json"
        content = json.loads(lock.read_text())
        for package in content["packages"].values():
            for unwanted in ("resolved", "funding", "license", "engines", "deprecated"):
                package.pop(unwanted, None)
        lock.write_text(json.dumps(content, indent=1) + "\n")
    return 0
