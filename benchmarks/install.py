"""What a peer needs, once: an environment of its own from its lock file, and its jars from the registry of Maven by the client `mvn`.

Both lie in the cache, outside the tree, and appear whole or not at all. Jars are pinned by version and by SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import Jar, Peer
from devkit import toolchain
from devkit.paths import REQUIREMENTS, cache_dir, file_lock

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"


class PeerUnavailable(Exception):
    """A peer could not be installed. The message says what to do."""


def environment_of(peer: Peer) -> Path:
    """The Python of the peer's environment. Installs it when missing. Safe for several processes. Raises PeerUnavailable."""
    if peer.lock is None:
        return Path(sys.executable)
    lock = REQUIREMENTS / f"{peer.lock}.lock"
    digest = hashlib.sha256(f"{sys.version}\0{sys.base_prefix}\0{lock.read_text()}".encode()).hexdigest()[:16]
    target = cache_dir() / "peers" / f"{peer.lock}-{digest}"
    with file_lock(target.with_name(target.name + ".lock"), f"another process is installing {peer.lock}"):
        if not target.exists():
            _install(peer.lock, lock, target)
    return target / "bin" / "python"


def jars_of(peer: Peer, *, on_s3: bool = False) -> list[Path]:
    """The peer's jars. Downloads them when they are missing.

    `on_s3`: also the jars that its Spark needs to reach S3. Raises PeerUnavailable, also when a jar is not the pinned one.
    """
    directory = cache_dir() / "peers" / "jars"
    directory.mkdir(parents=True, exist_ok=True)
    jars = [*peer.jars, *(_s3_jars(peer) if on_s3 else ())]
    if not jars:
        return []
    with file_lock(directory / ".lock", "another process is downloading jars"):
        return [_jar(jar, directory) for jar in jars]


def locked_versions(peer: Peer) -> dict[str, str]:
    """The pinned versions in the lock file of a peer, by package. Empty for the project's own environment."""
    lines = (REQUIREMENTS / f"{peer.lock}.lock").read_text().splitlines() if peer.lock else []
    pins = (line.split(" ")[0].partition("==") for line in lines if "==" in line and not line.startswith((" ", "#")))
    return {name: version for name, _, version in pins}


def _s3_jars(peer: Peer) -> list[Jar]:
    """From the file for the peer's Hadoop: on each line a coordinate and a SHA-256. None for a side without Spark."""
    if peer.hadoop is None:
        return []
    lines = (REQUIREMENTS / f"s3a-{peer.hadoop}.jars").read_text().splitlines()
    return [Jar(*line.split()) for line in lines if not line.startswith("#")]


def worker_environment(python: Path) -> dict[str, str]:
    """The variables of a worker: those of `./dev run`, with the peer's Python for Spark's workers, and a Java."""
    environment = toolchain.run_environment()
    environment["PATH"] = os.pathsep.join([str(python.parent), environment["PATH"]])
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = str(python)
    environment.setdefault("JAVA_HOME", str(toolchain.java_home()))
    for name in ("SPARK_HOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    return environment


def _install(name: str, lock: Path, target: Path) -> None:
    """Environments cannot move, so one is built under a temporary name and published by a link."""
    toolchain.check_may_install(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"dev: making the environment {name} (once)", file=sys.stderr, flush=True)
    building = Path(tempfile.mkdtemp(prefix=f"{target.name}.build-", dir=target.parent))
    try:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(building)
        pip = [f"{building}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        done = subprocess.run([*pip, "--require-hashes", "-r", str(lock)], stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise PeerUnavailable(f"pip could not install {lock.name}; its message is above: run it again, or leave that peer out")
        link = building / "published"
        link.symlink_to(building.name)
        os.replace(link, target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _jar(jar: Jar, directory: Path) -> Path:
    target = directory / jar.file
    if not target.exists():
        toolchain.check_may_install(jar.coordinate)
        mvn = shutil.which("mvn")
        if mvn is None:
            raise PeerUnavailable(
                f"{jar.coordinate} is fetched by Maven, which is not on PATH: install it (on Debian: apt-get install maven)"
            )
        print(f"dev: downloading {jar.coordinate} (once)", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=directory) as building:
            _run([mvn, "-q", "-B", _COPY, f"-Dartifact={jar.coordinate}", f"-DoutputDirectory={building}"], jar)
            _check(Path(building, jar.file), jar)
            os.replace(Path(building, jar.file), target)
    _check(target, jar)
    return target


def _run(command: Sequence[str], jar: Jar) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise PeerUnavailable(f"mvn could not fetch {jar.coordinate}: {(done.stdout + done.stderr)[-600:]}")


def _check(path: Path, jar: Jar) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != jar.sha256:
        raise PeerUnavailable(
            f"{path} has the SHA-256 {found}, and {jar.coordinate} is pinned to {jar.sha256}: delete the file and run again"
        )
