"""What a peer needs, once: an environment of its own from its lock file, and its jars."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.peers import Peer
from devkit import environments, toolchain
from devkit.environments import Artifact
from devkit.install import InstallError


class PeerUnavailable(Exception):
    """A peer could not be installed. The message says what to do."""


def environment_of(peer: Peer) -> Path:
    """The Python of the peer's environment. Installs it when missing. Safe for several processes. Raises PeerUnavailable."""
    if peer.lock is None:
        return Path(sys.executable)
    try:
        return environments.locked_environment(peer.lock)
    except InstallError as error:
        raise PeerUnavailable(str(error)) from error


def jars_of(peer: Peer, *, on_s3: bool = False) -> list[Path]:
    """The peer's jars. Downloads them when they are missing.

    `on_s3`: also the jars that its Spark needs to reach S3. Raises PeerUnavailable, also when a jar is not the pinned one.
    """
    try:
        return environments.locked_artifacts([*peer.jars, *(_s3_jars(peer) if on_s3 else ())])
    except InstallError as error:
        raise PeerUnavailable(str(error)) from error


def locked_versions(peer: Peer) -> dict[str, str]:
    """The pinned versions in the lock file of a peer, by package. Empty for the project's own environment."""
    return environments.locked_versions(peer.lock) if peer.lock else {}


def _s3_jars(peer: Peer) -> list[Artifact]:
    """From the file for the peer's Hadoop: on each line a coordinate and a SHA-256. None for a side without Spark."""
    if peer.hadoop is None:
        return []
    return environments.listed_artifacts(f"s3a-{peer.hadoop}")


def worker_environment(python: Path) -> dict[str, str]:
    """The variables of a worker: those of `./dev run`, with the peer's Python for Spark's workers, and a Java."""
    environment = toolchain.run_environment()
    environment["PATH"] = os.pathsep.join([str(python.parent), environment["PATH"]])
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = str(python)
    environment.setdefault("JAVA_HOME", str(toolchain.java_home()))
    for name in ("SPARK_HOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    return environment
