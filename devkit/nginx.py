"""nginx from Debian's own package, unpacked into the cache: a proxy as operators run it, for the tests of what stands behind it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from devkit import toolchain
from devkit.install import InstallError
from devkit.paths import cache_dir, file_lock

_UNPACKED = "usr/sbin/nginx"


def nginx_program() -> Path:
    """The program: that of the machine, else that of the package `nginx` of apt, without installing it. Raises InstallError."""
    found = _installed()
    if found is not None:
        return found
    toolchain.check_may_install("nginx")
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise InstallError("nginx is not on PATH, and there is no apt-get to fetch it. Install nginx.")
    target = _directory()
    with file_lock(target.with_name(target.name + ".lock"), "another process is fetching nginx"):
        if not (target / _UNPACKED).exists():
            building = Path(tempfile.mkdtemp(prefix="nginx.build-", dir=target.parent))
            try:
                _run(["apt-get", "download", "nginx"], building)
                (package,) = building.glob("nginx_*.deb")
                _run(["dpkg-deb", "-x", package.name, "."], building)
                building.rename(target)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    _run([str(target / _UNPACKED), "-v"], target)
    return target / _UNPACKED


def is_installed() -> bool:
    """Whether `nginx_program` finds it without fetching anything."""
    return _installed() is not None


def _installed() -> Path | None:
    on_path = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    unpacked = _directory() / _UNPACKED
    return Path(on_path) if on_path is not None else unpacked if unpacked.exists() else None


def _directory() -> Path:
    return cache_dir() / "servers" / "nginx-debian"


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise InstallError(
            f"nginx cannot be used: {' '.join(command)} said {done.stderr[-1000:].strip()!r}. Install nginx, and run it again."
        )
