"""Server programs that are not wheels. Each is built or downloaded once, pinned, into `<cache>/servers/<name>-<version>/`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devkit import toolchain
from devkit.paths import REQUIREMENTS, cache_dir, file_lock


class InstallError(Exception):
    """A server could not be built or downloaded. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Program:
    """A pinned server program.

    Args:
        version: Part of the name of its directory.
        program: The file that exists once the installation is finished.
        source: What Go installs; None for an npm package, which is locked in `requirements/<name>/`.
    """

    version: str
    program: str
    source: str | None = None

    def directory(self, name: str) -> Path:
        """Where the program is installed."""
        return cache_dir() / "servers" / f"{name}-{self.version}"


PROGRAMS: Mapping[str, Program] = {
    "versitygw": Program("1.8.0", "versitygw", "github.com/versity/versitygw/cmd/versitygw@v1.8.0"),
    "fake-gcs-server": Program("1.55.1", "fake-gcs-server", "github.com/fsouza/fake-gcs-server@v1.55.1"),
    "gcsemulator": Program(
        "0.0.0-20240401123056",
        "gcsemulator",
        "github.com/fullstorydev/emulators/storage/cmd/gcsemulator@v0.0.0-20240401123056-edc69752f474",
    ),
    "azurite": Program("3.37.0", "node_modules/azurite/dist/src/blob/main.js"),
}


def is_installed(name: str) -> bool:
    """Whether the installation of a program is finished."""
    return (PROGRAMS[name].directory(name) / PROGRAMS[name].program).exists()


def installed_program(name: str) -> Path:
    """The finished program. Installs it when it is missing. Safe for several processes. Raises InstallError or ToolchainError."""
    wanted = PROGRAMS[name]
    target = wanted.directory(name)
    program = target / wanted.program
    if program.exists():
        return program
    toolchain.check_may_install(name)
    with file_lock(target.with_name(target.name + ".lock"), f"another process is installing {name}"):
        if not program.exists():
            _install(name, wanted, target)
    return program


def _install(name: str, wanted: Program, target: Path) -> None:
    for leftover in target.parent.glob(f"{target.name}.build-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    building = Path(tempfile.mkdtemp(prefix=f"{target.name}.build-", dir=target.parent))
    how = "building (one to three minutes)" if wanted.source else "downloading"
    print(f"dev: {how} the test server {name} {wanted.version} (once)", file=sys.stderr, flush=True)
    try:
        output = _go(wanted.source, building) if wanted.source else _npm(name, building)
        if not (building / wanted.program).exists():
            raise InstallError(f"{name} {wanted.version} could not be installed. Its output: {output[-2000:] or 'none'}. Try again.")
        if target.exists():  # an unfinished directory of a dead process, since we hold the lock
            target.rename(building.with_name(building.name + ".old"))
        building.rename(target)
    finally:
        for leftover in target.parent.glob(f"{building.name}*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _go(source: str, building: Path) -> str:
    go = toolchain.tool("go")
    environment = {**os.environ, "GOBIN": str(building), "CGO_ENABLED": "0", "GOFLAGS": "-modcacherw"}
    environment["PATH"] = f"{go.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    return _output([go, "install", source], environment, building)


def _npm(name: str, building: Path) -> str:
    for file in ("package.json", "package-lock.json"):
        shutil.copy(REQUIREMENTS / name / file, building)
    npm = toolchain.npm()
    environment = {**os.environ, "PATH": f"{Path(npm[0]).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    return _output([*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"], environment, building)


def _output(command: Sequence[str | Path], environment: Mapping[str, str], directory: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory, stdin=subprocess.DEVNULL, check=False)
    return done.stdout + done.stderr
