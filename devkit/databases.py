"""Databases for tests: real servers on loopback, as a user who is not root, with their data in a folder of their own.

Stores are in `servers.py`. A database has no pinned download: it comes from the machine's own packages, in one of the versions below.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from devkit.install import InstallError
from devkit.paths import cache_dir, file_lock
from devkit.servers import HOST, READY_S_MAX, START_ATTEMPTS_MAX, ServerError, free_ports
from devkit.toolchain import check_may_install

POSTGRES_VERSIONS = range(14, 19)
"""The major versions of PostgreSQL that tests may run on."""
MARIADB_VERSIONS = range(10, 13)
"""The major versions of MariaDB that tests may run on."""
_PR_SET_PDEATHSIG = 1


def postgres_programs() -> Path | None:
    """The folder with `postgres` and `initdb` of the newest installed version that fits; None without one."""
    folders = [Path(folder) for folder in Path("/usr/lib/postgresql").glob("*/bin")]
    if found := shutil.which("initdb"):
        folders.append(Path(found).resolve().parent)
    if found := shutil.which("pg_config"):
        folders.append(Path(subprocess.run([found, "--bindir"], capture_output=True, text=True, check=False).stdout.strip()))
    fitting = [(version, folder) for folder in folders if (version := _major(folder / "postgres")) in POSTGRES_VERSIONS]
    return max(fitting)[1] if fitting else None


def install_postgres() -> Path:
    """The folder of the programs. Installs them by apt-get where they are missing and we are root. Raises InstallError."""
    if found := postgres_programs():
        return found
    check_may_install("PostgreSQL")
    _install_debian("postgresql", "PostgreSQL")
    if found := postgres_programs():
        return found
    versions = f"{POSTGRES_VERSIONS[0]} to {POSTGRES_VERSIONS[-1]}"
    raise InstallError(
        f"PostgreSQL {versions} is not installed. Install it by the package manager of the machine, such as apt-get install postgresql."
    )


def install_mariadb() -> Path:
    """The program `mariadbd`. Installs it by apt-get where it is missing and we are root. Raises InstallError."""
    if found := mariadb_program():
        return found
    check_may_install("MariaDB")
    _install_debian("mariadb-server", "MariaDB")
    if found := mariadb_program():
        return found
    raise InstallError(
        f"MariaDB {MARIADB_VERSIONS[0]} or newer is not installed. Install it by the package manager of the machine, such as apt-get "
        "install mariadb-server."
    )


def mariadb_program() -> Path | None:
    """`mariadbd` in a version that fits; None without one."""
    found = shutil.which("mariadbd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/libexec"]))
    return Path(found) if found and _major(Path(found)) in MARIADB_VERSIONS else None


def _major(program: Path) -> int:
    if not program.exists():
        return 0
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)\.", said)
    return int(found[1]) if found else 0


def _install_debian(package: str, what: str) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"dev: Installing {what} ({package}) by apt-get, since this machine has none.", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    with file_lock(cache_dir() / "apt.lock", f"another process is installing {what}"):
        for command in (install, ["apt-get", "update", "-qq"], install):
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode == 0 and command is install:
                return


@dataclass(frozen=True, slots=True)
class DatabaseUser:
    """Who a database runs as: databases refuse to run as root."""

    name: str
    uid: int
    gid: int

    @classmethod
    def find(cls, *names: str) -> Self:
        """The first of these users that the machine has, when we are root; otherwise ourselves."""
        if os.geteuid() != 0:
            return cls(pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid())
        for name in (*names, "nobody"):
            try:
                found = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name, found.pw_uid, found.pw_gid)
        raise ServerError(f"This machine has none of the users {', '.join(names)} and nobody, and a database does not run as root.")

    def start(
        self, command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str] | None = None, script: IO[bytes] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command as this user. The kernel ends it with this process. `script`: its input."""
        parent = os.getpid()
        is_root = os.geteuid() == 0

        def before() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        with log.open("ab") as target:
            return subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL if script is None else script,
                stdout=target,
                stderr=target,
                cwd=log.parent,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=before,  # noqa: PLW1509 - no thread of ours holds a lock that this needs
                user=self.uid if is_root else None,
                group=self.gid if is_root else None,
                extra_groups=[] if is_root else None,
            )


class DatabaseFolder:
    """A new folder that the user of a database may enter, removed by `close`."""

    def __init__(self, name: str, user: DatabaseUser) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"objcat-{name}-"))
        if os.geteuid() == 0:
            os.chown(self.path, user.uid, user.gid)
        self.path.chmod(0o755)
        self.log = self.path / "log"

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def end_of_log(self) -> str:
        """The end of the server's log."""
        return self.log.read_text(errors="replace")[-1500:] if self.log.exists() else ""


class DatabaseServer(ABC):
    """A database that runs within a context, with its data in a folder of its own.

    Args:
        name: for people.
        users: who it may run as.
        settings: of the server, next to those that tests need.
    """

    def __init__(self, name: str, users: Sequence[str], settings: Mapping[str, str]) -> None:
        self.port = 0
        self._name = name
        self._user = DatabaseUser.find(*users)
        self._folder = DatabaseFolder(name.lower(), self._user)
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._initialize()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.close()

    @property
    def pid(self) -> int:
        """Of its process. Raises ServerError when it does not run."""
        if self._process is None:
            raise ServerError(f"{self._name} does not run.")
        return self._process.pid

    @abstractmethod
    def connection(self, database: str = "") -> str:
        """How `objcat ingest` connects to it."""

    def start(self) -> None:
        """Start it, on a free port the first time and on the same one later. Raises ServerError."""
        for _ in range(START_ATTEMPTS_MAX):
            port = self.port or free_ports(1)[0]
            self._process = self._user.start(self._command(port), log=self._folder.log)
            if self._is_ready(port):
                self.port = port
                return
            self.kill()
            if self.port:
                break
        raise ServerError(f"{self._name} did not start. The end of its log: {self._folder.end_of_log()}")

    def kill(self) -> None:
        """End it at once, as a crash does. Its processes are gone afterwards, so it may be started again."""
        if self._process is not None:
            self._crash(self._process)
            self._process = None

    def _crash(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    @abstractmethod
    def _initialize(self) -> None:
        """Make its data."""

    @abstractmethod
    def _command(self, port: int) -> list[str | Path]:
        """What starts it."""

    @abstractmethod
    def _answers(self, port: int) -> bool:
        """Whether it takes connections."""

    def _run(self, command: Sequence[str | Path], *, script: IO[bytes] | None = None) -> None:
        """Run a command that makes data. Raises ServerError."""
        done = self._user.start(command, log=self._folder.log, script=script).wait()
        if done != 0:
            raise ServerError(f"{Path(command[0]).name} ended with status {done}. The end of its log: {self._folder.end_of_log()}")

    def _is_ready(self, port: int) -> bool:
        deadline = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                return False
            if self._answers(port):
                return True
            time.sleep(0.05)
        return False


class PostgresServer(DatabaseServer):
    """PostgreSQL with logical replication. A context manager.

    Args:
        settings: of the server, next to those that tests need.
    """

    def __init__(self, **settings: str) -> None:
        self._programs = install_postgres()
        super().__init__("PostgreSQL", ("postgres",), settings)

    def connection(self, database: str = "") -> str:
        """A connection string of libpq."""
        return f"host={HOST} port={self.port} user=objcat dbname={database or 'postgres'}"

    def _crash(self, process: subprocess.Popen[bytes]) -> None:
        # Without a checkpoint. Unlike SIGKILL, it takes the processes of the server along.
        process.send_signal(signal.SIGQUIT)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            super()._crash(process)

    def _command(self, port: int) -> list[str | Path]:
        fixed = {
            "listen_addresses": HOST,
            "port": str(port),
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_wal_senders": "20",
            "max_replication_slots": "20",
            "fsync": "off",
            "shared_buffers": "32MB",
            "max_connections": "60",
        }
        options = [part for name, value in {**fixed, **self._settings}.items() for part in ("-c", f"{name}={value}")]
        return [self._programs / "postgres", "-D", self._folder.path / "data", *options]

    def _initialize(self) -> None:
        options = ("-A", "trust", "-U", "objcat", "-E", "UTF8", "--no-sync", "--locale=C.UTF-8")
        self._run([self._programs / "initdb", "-D", self._folder.path / "data", *options])

    def _answers(self, port: int) -> bool:
        check: list[str | Path] = [self._programs / "pg_isready", "-q", "-h", HOST, "-p", str(port), "-d", "postgres", "-U", "objcat"]
        return subprocess.run(check, capture_output=True, check=False).returncode == 0


class BinlogServer(DatabaseServer):
    """What MariaDB and MySQL share: a server with a binlog that can be followed. The user `objcat` has no password and every right."""

    def connection(self, database: str = "") -> str:
        """A connection string of `objcat ingest`."""
        return f"mysql://objcat@{HOST}:{self.port}/{database}"

    def _options(self, port: int, **own: str) -> list[str]:
        """Options of the server on a port. own: those of one kind of server, with `_` for `-`. Those of the test come last."""
        shared = {
            "bind-address": HOST,
            "port": str(port),
            "socket": str(self._folder.path / "socket"),
            "pid-file": str(self._folder.path / "pid"),
            "server-id": "1",
            "log-bin": "binlog",
            "binlog-row-metadata": "FULL",
            "innodb-buffer-pool-size": "64M",
            "innodb-flush-log-at-trx-commit": "0",
            "sync-binlog": "0",
            "skip-name-resolve": "1",
            "max-connections": "60",
        }
        given = {name.replace("_", "-"): value for name, value in {**own, **self._settings}.items()}
        return [f"--{name}={value}" for name, value in {**shared, **given}.items()]

    def _users_script(self, create: str, *, first: str = "") -> Path:
        """A file of SQL that makes the user, one statement a line. create: how. first: the lines before."""
        path = self._folder.path / "users.sql"
        path.write_text(f"{first}{create};\ngrant all on *.* to objcat@'127.0.0.1' with grant option;\n")
        path.chmod(0o644)
        return path

    def _answers(self, port: int) -> bool:
        # One that is ready greets.
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1) as opened:
            return bool(opened.recv(5))
        return False


class MariaDbServer(BinlogServer):
    """MariaDB. A context manager.

    Args:
        settings: of the server, next to those that tests need.
    """

    def __init__(self, **settings: str) -> None:
        self._program = install_mariadb()
        super().__init__("MariaDB", ("mysql",), settings)

    def _command(self, port: int) -> list[str | Path]:
        options = self._options(port, binlog_format="ROW", binlog_row_image="FULL")
        return [self._program, "--no-defaults", f"--datadir={self._folder.path / 'data'}", *options]

    def _initialize(self) -> None:
        data = f"--datadir={self._folder.path / 'data'}"
        install = shutil.which("mariadb-install-db") or self._program.with_name("mariadb-install-db")
        self._run([install, "--no-defaults", data, "--auth-root-authentication-method=normal", "--skip-test-db"])
        # Users can be made once the privileges are loaded.
        start = self._users_script("create user objcat@'127.0.0.1'", first="flush privileges;\n")
        with start.open("rb") as script:
            self._run([self._program, "--no-defaults", data, "--bootstrap"], script=script)


DATABASES: Mapping[str, tuple[Callable[[], DatabaseServer], str]] = {
    "postgres": (PostgresServer, "PostgreSQL with logical replication, for objcat ingest"),
    "mariadb": (MariaDbServer, "MariaDB with a binlog, for objcat ingest"),
}
"""By name: how to make one, and what it is for."""
