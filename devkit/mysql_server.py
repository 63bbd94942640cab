"""MySQL for tests of ingest. The machine's own release has none, so it comes from Debian's unstable release, unpacked in a folder of ours.

It runs by the loader and the libraries of that release, which are unpacked beside it. Nothing of the system changes. The server is pinned
by version and checksum; its libraries are those that the release has, which apt checks by the release's signature.

The release moves on. When it no longer has the pinned version, MySQL cannot be had, and the tests that need it are skipped with that
message: move `VERSION` and `SHA256` then.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from devkit.databases import BinlogServer
from devkit.install import InstallError
from devkit.paths import cache_dir, file_lock
from devkit.toolchain import check_may_install

VERSION = "9.7.4-2"
SHA256 = "628d2d7d2dc827507bcae80677a9950766b002bec2c658cb96343d9f324f8660"
"""Of the package of the server for amd64."""
SERVER = "mysql-server-core"
SUITE = "sid"
LIBRARIES = (
    "libc6", "libgcc-s1", "libstdc++6", "libaio1t64", "libicu78", "liblz4-1", "liblzma5", "libnuma1", "libprotobuf-lite32t64",
    "libprotobuf32t64", "libssl3t64", "libgoogle-perftools4t64", "libtcmalloc-minimal4t64", "libunwind8", "libxxhash0", "zlib1g",
    "libzstd1",
)  # fmt: skip
"""Packages with what the server and its components are linked to."""
_OWNER = "root"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def mysql_folder() -> Path | None:
    """The unpacked server; None when it is not installed."""
    folder = _target()
    return folder if (folder / "usr/sbin/mysqld").exists() else None


def install_mysql() -> Path | None:
    """Unpack the server where it is missing. Returns its folder; None, with a line for people, when it cannot be had on this machine."""
    if found := mysql_folder():
        return found
    check_may_install("MySQL")
    target = _target()
    with file_lock(target.with_name(target.name + ".lock"), "another process is installing MySQL"):
        if not (target / "usr/sbin/mysqld").exists():
            building = Path(tempfile.mkdtemp(prefix=f"{target.name}.build-", dir=target.parent))
            try:
                _unpack(building)
                # The user of the server may not be the one who installs it.
                building.chmod(0o755)
                building.rename(target)
            except (InstallError, OSError) as error:
                print(f"dev: MySQL {VERSION} cannot be had here, and its tests are skipped: {error}", file=sys.stderr, flush=True)
                return None
            finally:
                shutil.rmtree(building, ignore_errors=True)
    return target


class MySqlServer(BinlogServer):
    """MySQL. A context manager.

    Args:
        settings: of the server, next to those that tests need.
    """

    def __init__(self, **settings: str) -> None:
        found = mysql_folder() or install_mysql()
        if found is None:
            raise InstallError(f"MySQL {VERSION} is not installed, and cannot be had on this machine.")
        self._programs = found
        # The cache may be in a folder that its owner alone may enter.
        super().__init__("MySQL", (_OWNER,), settings)

    def _command(self, port: int) -> list[str | Path]:
        options = self._options(port, gtid_mode="ON", enforce_gtid_consistency="ON", mysqlx="0", performance_schema="0")
        return [*self._server(), *options]

    def _initialize(self) -> None:
        # Without a password the plugin of today sends none, so this needs no encryption.
        start = self._users_script("create user objcat@'127.0.0.1' identified by ''")
        self._run([*self._server(), "--initialize-insecure", f"--init-file={start}", "--performance-schema=0"])

    def _server(self) -> list[str | Path]:
        libraries = self._programs / "usr/lib/x86_64-linux-gnu"
        share = self._programs / "usr/share/mysql"
        return [
            libraries / "ld-linux-x86-64.so.2",
            "--library-path",
            libraries,
            self._programs / "usr/sbin/mysqld",
            "--no-defaults",
            f"--datadir={self._folder.path / 'data'}",
            f"--lc-messages-dir={share}",
            f"--character-sets-dir={share / 'charsets'}",
            f"--plugin-dir={self._programs / 'usr/lib/mysql/plugin'}",
            "--secure-file-priv=",
            *([f"--user={_OWNER}"] if os.geteuid() == 0 else []),
        ]


def _target() -> Path:
    return cache_dir() / "servers" / f"mysql-{VERSION}"


def _unpack(folder: Path) -> None:
    """Fetch the packages by apt, with lists and a state of its own, and unpack them. Raises InstallError."""
    for program in ("apt-get", "dpkg-deb"):
        if not shutil.which(program):
            raise InstallError(f"This machine has no {program}.")
    with tempfile.TemporaryDirectory(prefix="objcat-apt-") as scratch:
        work = Path(scratch)
        work.chmod(0o755)
        options = _apt_options(work)
        _call(["apt-get", *options, "update", "-qq"], work)
        _call(["apt-get", *options, "download", "-qq", f"{SERVER}={VERSION}", *LIBRARIES], work)
        (server,) = work.glob(f"{SERVER}_*.deb")
        found = hashlib.sha256(server.read_bytes()).hexdigest()
        if found != SHA256:
            raise InstallError(f"{server.name} has the checksum {found}, and {SHA256} is pinned.")
        for package in sorted(work.glob("*.deb")):
            _call(["dpkg-deb", "-x", str(package), str(folder)], work)


def _apt_options(work: Path) -> list[str]:
    """Options by which apt knows the release alone, and nothing of what is installed."""
    site = _call(["apt-get", "indextargets", "--format", "$(REPO_URI)|$(ORIGIN)|$(RELEASE)", "Created-By: Packages"], work)
    rows = [line.split("|") for line in site.splitlines()]
    sites = [row[0] for row in rows if len(row) == 3 and row[1] == "Debian" and "security" not in row[2]]
    if not sites:
        raise InstallError("apt of this machine does not know Debian. Run apt-get update.")
    (work / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {sites[0]} {SUITE} main\n")
    (work / "status").touch()
    for name in ("lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    given = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
    }
    return [part for name, value in given.items() for part in ("-o", f"{name}={value}")]


def _call(command: Sequence[str], work: Path) -> str:
    done = subprocess.run(
        command, cwd=work, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise InstallError(f"{' '.join(command[:1])} {command[-1]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout
