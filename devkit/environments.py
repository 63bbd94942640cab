"""Environments beside the project's own, each from a lock file, and files from Maven's registry by the client `mvn`.

Both are in the cache, outside the tree, and appear whole or not at all. Files of Maven are pinned by version and by SHA-256.
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
from dataclasses import dataclass
from pathlib import Path

from devkit import toolchain
from devkit.install import InstallError
from devkit.paths import REQUIREMENTS, cache_dir, file_lock

_PLUGIN = ("org.apache.maven.plugins", "maven-dependency-plugin", "3.6.1")
_COPY = ":".join((*_PLUGIN, "copy"))
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>devkit</groupId><artifactId>files</artifactId><version>1</version><packaging>pom</packaging>
<build><plugins><plugin><groupId>{plugin[0]}</groupId><artifactId>{plugin[1]}</artifactId><version>{plugin[2]}</version>
<configuration><outputDirectory>{directory}</outputDirectory><artifactItems>{items}</artifactItems></configuration>
</plugin></plugins></build></project>
"""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of Maven's registry.

    Args:
        coordinate: `group:artifact:version`, or `group:artifact:version:packaging` for what is no jar, or
            `group:artifact:version:packaging:classifier`.
        sha256: The pinned SHA-256 of the file.
    """

    coordinate: str
    sha256: str

    @property
    def file(self) -> str:
        """The name of the file."""
        _group, artifact, version, packaging, classifier = self.parts
        return f"{artifact}-{version}{classifier and f'-{classifier}'}.{packaging}"

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
        """Group, artifact, version, packaging and classifier; "" for none."""
        group, artifact, version, *more = self.coordinate.split(":")
        packaging, classifier = [*more, *("jar", "")[len(more) :]]
        return group, artifact, version, packaging, classifier


def environment_dir(lock: str) -> Path:
    """The folder of the environment of `requirements/<lock>.lock` and this interpreter. It may not exist yet."""
    text = (REQUIREMENTS / f"{lock}.lock").read_text()
    digest = hashlib.sha256(f"{sys.version}\0{sys.base_prefix}\0{text}".encode()).hexdigest()[:16]
    return cache_dir() / "peers" / f"{lock}-{digest}"


def locked_environment(lock: str) -> Path:
    """The Python of that environment. Installs it when it is missing. Safe for several processes.

    Raises InstallError, or ToolchainError where nothing may be installed.
    """
    target = environment_dir(lock)
    with file_lock(target.with_name(target.name + ".lock"), f"another process is installing {lock}"):
        if not target.exists():
            _install(lock, target)
    return target / "bin" / "python"


def locked_versions(lock: str) -> dict[str, str]:
    """The pinned versions of a lock file, by package."""
    lines = (REQUIREMENTS / f"{lock}.lock").read_text().splitlines()
    pins = (line.split(" ")[0].partition("==") for line in lines if "==" in line and not line.startswith((" ", "#")))
    return {name: version for name, _, version in pins}


def has_artifacts(artifacts: Sequence[Artifact]) -> bool:
    """Whether these files are in the cache."""
    return all((_artifacts_dir() / artifact.file).exists() for artifact in artifacts)


def locked_artifacts(artifacts: Sequence[Artifact]) -> list[Path]:
    """These files. Downloads what is missing. Raises InstallError, also when a file is not the pinned one."""
    if not artifacts:
        return []
    directory = _artifacts_dir()
    directory.mkdir(parents=True, exist_ok=True)
    with file_lock(directory / ".lock", "another process is downloading jars"):
        if missing := [artifact for artifact in artifacts if not (directory / artifact.file).exists()]:
            _fetch(missing, directory)
        return [_check(directory / artifact.file, artifact) for artifact in artifacts]


def _artifacts_dir() -> Path:
    return cache_dir() / "peers" / "jars"


def _install(lock: str, target: Path) -> None:
    """Environments cannot move, so one is built under a temporary name and published by a link."""
    toolchain.check_may_install(lock)
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"dev: making the environment {lock} (once)", file=sys.stderr, flush=True)
    building = Path(tempfile.mkdtemp(prefix=f"{target.name}.build-", dir=target.parent))
    try:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(building)
        pip = [f"{building}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
        command = [*pip, "--require-hashes", "-r", str(REQUIREMENTS / f"{lock}.lock")]
        done = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise InstallError(f"pip could not install requirements/{lock}.lock. Its message is above. Nothing was changed. Run it again.")
        link = building / "published"
        link.symlink_to(building.name)
        os.replace(link, target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _fetch(artifacts: Sequence[Artifact], directory: Path) -> None:
    """Download files by one run of Maven, check each, and put them into the cache."""
    for artifact in artifacts:
        toolchain.check_may_install(artifact.coordinate)
    said = artifacts[0].coordinate if len(artifacts) == 1 else f"{len(artifacts)} files such as {artifacts[0].coordinate}"
    mvn = shutil.which("mvn")
    if mvn is None:
        raise InstallError(f"{said}: Maven fetches that, and it is not on PATH. Install it (on Debian: apt-get install maven).")
    print(f"dev: downloading {said} (once)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=directory) as building:
        pom = Path(building, "pom.xml")
        pom.write_text(_POM.format(plugin=_PLUGIN, items="".join(map(_item, artifacts)), directory=building))
        done = subprocess.run(
            [mvn, "-q", "-B", "-f", str(pom), _COPY], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode != 0:
            raise InstallError(f"mvn could not fetch {said}: {(done.stdout + done.stderr)[-600:]}")
        for artifact in artifacts:
            _check(Path(building, artifact.file), artifact)
            os.replace(Path(building, artifact.file), directory / artifact.file)


def _item(artifact: Artifact) -> str:
    group, name, version, packaging, classifier = artifact.parts
    return (
        f"<artifactItem><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"<type>{packaging}</type><classifier>{classifier}</classifier></artifactItem>"
    )


def _check(path: Path, artifact: Artifact) -> Path:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != artifact.sha256:
        raise InstallError(
            f"{path} has the SHA-256 {found}, and {artifact.coordinate} is pinned to {artifact.sha256}. Delete the file and run again."
        )
    return path


def listed_artifacts(name: str) -> list[Artifact]:
    """The files that `requirements/<name>.jars` pins: a coordinate and a SHA-256 on each line."""
    lines = (REQUIREMENTS / f"{name}.jars").read_text().splitlines()
    return [Artifact(*line.split()) for line in lines if not line.startswith("#")]
