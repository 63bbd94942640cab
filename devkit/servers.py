"""Real object stores on loopback. They are installed once, started on free ports, and end with the process that started them."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Literal, Self

from devkit import toolchain
from devkit.handle import ServerHandle, StoreScheme, s3_client
from devkit.install import installed_program
from devkit.paths import cache_dir

HOST = "127.0.0.1"
READY_S_MAX = 120
START_ATTEMPTS_MAX = 3
_ACCESS_KEY, _SECRET_KEY = "objcat", "objcat-on-loopback"
_AZURITE_ACCOUNT = "devstoreaccount1"
_AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that Azurite publishes for its built-in account."""

ServerName = Literal["moto", "seaweedfs", "versitygw", "fake-gcs-server", "gcsemulator", "azurite"]


class ServerError(Exception):
    """A server did not start. The message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server: its command, its environment variables, and its endpoint."""

    command: list[str | Path]
    endpoint: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Server:
    """One kind of server. `launch`: from its data directory to how to start it there, on free ports."""

    scheme: StoreScheme
    launch: Callable[[Path], Launch]
    about: str
    needs_xattrs: bool = False


def free_ports(count: int) -> list[int]:
    """Free ports of loopback. Another process may take one before it is used, so be ready to ask again."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(s.getsockname()[1]) for s in sockets]


def _moto(_data: Path) -> Launch:
    (port,) = free_ports(1)
    return Launch([sys.executable, "-m", "devkit.moto_server", str(port)], f"http://{HOST}:{port}")


def _seaweedfs(data: Path) -> Launch:
    s3, *others = free_ports(8)
    names = ["s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"]
    ports = [f"-{name}={port}" for name, port in zip(names, others, strict=True)]
    weed = Path(sys.prefix) / "bin" / "weed"
    fixed = [f"-dir={data}", f"-ip={HOST}", f"-ip.bind={HOST}", "-master.telemetry=false"]
    fixed += ["-master.volumeSizeLimitMB=32", "-volume.max=400"]
    features = ["-filer", "-s3", f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.preStopSeconds=0"]
    keys = {"AWS_ACCESS_KEY_ID": _ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": _SECRET_KEY}
    return Launch([weed, "server", *fixed, *features, *ports], f"http://{HOST}:{s3}", keys)


def _versitygw(data: Path) -> Launch:
    (port,) = free_ports(1)
    keys = {"ROOT_ACCESS_KEY": _ACCESS_KEY, "ROOT_SECRET_KEY": _SECRET_KEY}
    program = installed_program("versitygw")
    return Launch([program, "--port", f"{HOST}:{port}", "--health", "/health", "--quiet", "posix", data], f"http://{HOST}:{port}", keys)


def _fake_gcs_server(_data: Path) -> Launch:
    (port,) = free_ports(1)
    endpoint = f"http://{HOST}:{port}"
    where = ["-scheme", "http", "-host", HOST, "-port", str(port), "-external-url", endpoint, "-public-host", f"{HOST}:{port}"]
    return Launch([installed_program("fake-gcs-server"), "-backend", "memory", *where], endpoint)


def _gcsemulator(_data: Path) -> Launch:
    (port,) = free_ports(1)
    return Launch([installed_program("gcsemulator"), "-host", HOST, "-port", str(port)], f"http://{HOST}:{port}")


def _azurite(_data: Path) -> Launch:
    (port,) = free_ports(1)
    node = toolchain.tool("node")
    where = ["--inMemoryPersistence", "--blobHost", HOST, "--blobPort", str(port)]
    quiet = ["--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    return Launch([node, installed_program("azurite"), *where, *quiet], f"http://{HOST}:{port}/{_AZURITE_ACCOUNT}")


SERVERS: Mapping[ServerName, Server] = {
    "moto": Server("s3", _moto, "S3 for unit tests; a lock per key makes it atomic"),
    "seaweedfs": Server("s3", _seaweedfs, "S3, fast; conditional Complete is not atomic"),
    "versitygw": Server("s3", _versitygw, "S3 for races; ignores conditions on copy", needs_xattrs=True),
    "fake-gcs-server": Server("gs", _fake_gcs_server, "GCS; ignores conditions on delete, compose and copy"),
    "gcsemulator": Server("gs", _gcsemulator, "GCS; atomic delete, compose and batch, no ranges"),
    "azurite": Server("az", _azurite, "Azure Blob"),
}


def _options(scheme: StoreScheme, endpoint: str) -> dict[str, str]:
    match scheme:
        case "s3":
            keys = {"access_key": _ACCESS_KEY, "secret_key": _SECRET_KEY}
            return {"endpoint": endpoint, "region": "us-east-1", **keys, "path_style": "true"}
        case "gs":
            return {"endpoint": endpoint, "project": "objcat", "anonymous": "true"}
        case "az":
            return {"endpoint": endpoint, "account": _AZURITE_ACCOUNT, "account_key": _AZURITE_KEY}


class Servers:
    """The servers of one process. They start on demand. `close` stops them, or the kernel when this process ends. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._running: dict[ServerName, tuple[ServerHandle, subprocess.Popen[bytes]]] = {}
        self._own: list[subprocess.Popen[bytes]] = []
        self._cleanup = contextlib.ExitStack()
        # The kernel kills a server when the *thread* that started it ends. So one thread, as long-lived as this object, starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="servers")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, name: ServerName) -> ServerHandle:
        """The handle of a server, with a bucket that all callers share. Installs and starts the server when it is not running.

        Raises ServerError with the end of its log, InstallError or ToolchainError.
        """
        with self._lock:
            if name in self._running:
                handle, process = self._running[name]
                if process.poll() is None:
                    return handle
                raise ServerError(f"{name} ended with status {process.returncode}. Start it again.")
            self._running[name] = self._started(name, SERVERS[name])
            return self._running[name][0]

    def start_own(self, name: ServerName, *arguments: str) -> ServerHandle:
        """The handle of a server that nobody else uses, with a bucket. Raises as `start`.

        arguments: further ones of its program.
        """
        server = SERVERS[name]

        def launch(data: Path) -> Launch:
            """The server with these arguments."""
            usual = server.launch(data)
            return replace(usual, command=[*usual.command, *arguments])

        with self._lock:
            handle, process = self._started(name, replace(server, launch=launch))
            self._own.append(process)
            return handle

    def close(self) -> None:
        """Stop all servers and remove their data. May be called again."""
        with self._lock:
            processes = [*(process for _, process in self._running.values()), *self._own]
            self._running.clear()
            self._own.clear()
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()
            self._starter.shutdown()
            self._cleanup.close()

    def _started(self, name: ServerName, server: Server) -> tuple[ServerHandle, subprocess.Popen[bytes]]:
        told = ""
        for _ in range(START_ATTEMPTS_MAX):
            data = self._cleanup.enter_context(data_directory(name, needs_xattrs=server.needs_xattrs))
            launch = server.launch(data)
            with (data.parent / "log").open("w+b") as log:
                process = self._starter.submit(_spawn, launch, log, data.parent).result()
                handle = ServerHandle(name, server.scheme, f"{server.scheme}://unmade", _options(server.scheme, launch.endpoint))
                try:
                    return _wait_until_ready(handle, process), process
                except ServerError as error:
                    _end(process)
                    log.seek(0)
                    told = f"{error} The end of its log: {log.read()[-1500:].decode(errors='replace')}"
                    if process.returncode in (-signal.SIGKILL, None):
                        break  # it ran but did not become ready; another port would not help
                except BaseException:
                    _end(process)
                    raise
        raise ServerError(told)


def _spawn(launch: Launch, log: IO[bytes], directory: Path) -> subprocess.Popen[bytes]:
    """Start the server as a child. The kernel kills it when the calling thread ends."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_EMULATOR"))}
    guarded = [sys.executable, "-m", "devkit.servers", str(os.getpid()), *map(str, launch.command)]
    environment |= launch.environment
    return subprocess.Popen(
        guarded, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=directory, start_new_session=True
    )


def _become(arguments: list[str]) -> None:
    """Ask the kernel for SIGKILL at the death of the parent, which may be dead already. Then run the command in this process."""
    parent, *command = arguments
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)
    os.execv(command[0], command)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _wait_until_ready(handle: ServerHandle, process: subprocess.Popen[bytes]) -> ServerHandle:
    """The handle with its first bucket, once the server created one and stored an object. Health checks answer long before."""
    deadline = time.monotonic() + READY_S_MAX
    said: Exception | None = None
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"{handle.name} ended with status {process.returncode} instead of starting.")
        try:
            with socket.create_connection(handle.address, timeout=1):
                pass
            ready = handle.fresh_bucket()
            if handle.scheme == "s3":
                _store_one_object(ready)
            return ready
        except (OSError, http.client.HTTPException) as error:
            said = error
        except Exception as error:  # noqa: BLE001  (each SDK has its own error for "not ready yet")
            said = error
        time.sleep(0.05)
    raise ServerError(f"{handle.name} was not ready after {READY_S_MAX} s ({said}).")


def _store_one_object(handle: ServerHandle) -> None:
    client = s3_client(handle)
    where = {"Bucket": handle.url.removeprefix("s3://"), "Key": "ready"}
    client.put_object(**where, Body=b"ready")
    client.delete_object(**where)


@contextlib.contextmanager
def data_directory(name: str, *, needs_xattrs: bool = False) -> Iterator[Path]:
    """A new, empty directory for a server, removed at the end. Those of dead processes are removed first. Raises ServerError."""
    own = f"objcat-run-{os.getuid()}"
    for base in (cache_dir() / "run", Path(tempfile.gettempdir()) / own, Path("/dev/shm") / own):
        try:
            base.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        _sweep(base)
        if needs_xattrs and not _has_xattrs(base):
            continue
        home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base))
        with (home / "alive").open("w") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)
            (home / "data").mkdir()
            try:
                yield home / "data"
            finally:
                shutil.rmtree(home, ignore_errors=True)
        return
    raise ServerError(
        f"{name} stores metadata in extended attributes. Neither the cache nor the temporary directory nor /dev/shm has them. "
        "Set OBJCAT_CACHE to a directory on ext4, xfs or btrfs."
        if needs_xattrs
        else f"No directory for the data of {name} could be created. Set OBJCAT_CACHE to a writable directory."
    )


def _sweep(base: Path) -> None:
    """Remove the directories of dead processes: the kernel has released their locks."""
    for home in base.iterdir():
        try:
            with (home / "alive").open() as alive:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home, ignore_errors=True)
        except OSError:
            continue


def _has_xattrs(directory: Path) -> bool:
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        try:
            os.setxattr(file.name, "user.objcat", b"1")
        except OSError:
            return False
    return True


if __name__ == "__main__":
    _become(sys.argv[1:])
