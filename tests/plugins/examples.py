"""Distributions of `examples/`, built and unpacked as an installation does, so that their entry points are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from devkit import prepare
from devkit.paths import ROOT

EXAMPLES = ROOT / "examples"


def install(example: str, folder: Path) -> Path:
    """Build the wheel of an example and unpack it into `folder / "site"`, with its metadata. Returns that folder."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(EXAMPLES / example)]
    environment = {**os.environ, "PYTHONPATH": str(prepare.package_builder())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder / "site")
    return folder / "site"


def python(
    *arguments: str, sites: Sequence[Path] = (), cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with objcat, and with what is installed in the folders `sites`."""
    paths = [*map(str, sites), str(ROOT)]
    environment = {**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def run_tests(example: str, *sites: Path, cwd: Path, env: Mapping[str, str] | None = None, only: str = "") -> int:
    """Run the tests of an example that is installed, with what it needs, in `sites`. Returns how many passed; fails when one did not.

    only: an expression of `pytest -k`.
    """
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir", str(EXAMPLES / example), "-W", "error"]
    options += ["-k", only] if only else []
    done = python("-m", "pytest", *options, str(EXAMPLES / example), sites=sites, cwd=cwd, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])
