"""Builds the project's environment and prints its path. Runs on a bare Python, before anything is installed.

An environment is built under a temporary name and published by one rename of a symlink, so a reader never sees half of one. A file lock
lets one process build while others wait; the kernel releases it when its holder dies. The next builder removes what a killed one left.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from devkit.paths import LOCK, ROOT, cache_dir, file_lock

_LAYOUT = "1"
"""Changes when environments of an older bootstrap no longer fit."""


def environment_dir() -> Path:
    """The path of the environment for this lock file and this interpreter. It may not exist yet."""
    digest = hashlib.sha256()
    for part in (_LAYOUT, sys.version, sys.base_prefix, platform.machine(), LOCK.read_text()):
        digest.update(part.encode() + b"\0")
    return cache_dir() / f"venv-{digest.hexdigest()[:16]}"


def ensure_environment() -> Path:
    """The finished environment. Builds it when it is missing. Safe for several processes, and to interrupt at any point."""
    target = environment_dir()
    if (target / "bin" / "python").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(target.with_suffix(".lock"), f"another ./dev is building the environment {target.name}"):
        if not (target / "bin" / "python").exists():
            _build(target)
    return target


def _build(target: Path) -> None:
    for leftover in target.parent.glob(f"{target.name}.build-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    _say(f"Building the environment in {target}. This happens once and takes 2 to 5 minutes and about 2 GB.")
    building = Path(tempfile.mkdtemp(prefix=f"{target.name}.build-", dir=target.parent))
    try:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(building)
        install = [f"{building}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
        done = subprocess.run([*install, "--require-hashes", "-r", str(LOCK)], stdout=sys.stderr, env=_pip_environment(), check=False)
        if done.returncode != 0:
            raise SystemExit(
                "dev: pip could not install requirements/dev.lock. Its message is above. Nothing was changed. Run ./dev again."
            )
        _write_scripts(building)
        link = building / "published"
        link.symlink_to(building.name)
        os.replace(link, target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _pip_environment() -> dict[str, str]:
    unwanted = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_USER", "PIP_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def _write_scripts(building: Path) -> None:
    """Write the project's own commands. PYTHONPATH finds the project, so clones may share an environment and be read-only."""
    for name, entry in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].items():
        module, function = entry.split(":")
        script = building / "bin" / name
        script.write_text(f"#!{building}/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        script.chmod(0o755)


def _say(text: str) -> None:
    print(f"dev: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        print(ensure_environment())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
