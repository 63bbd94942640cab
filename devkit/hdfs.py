"""HDFS for tests: a NameNode and a DataNode on loopback, from the jars that `requirements/hdfs.jars` pins."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from devkit import toolchain
from devkit.databases import DatabaseServer
from devkit.environments import has_artifacts, listed_artifacts, locked_artifacts
from devkit.servers import HOST, READY_S_MAX, ServerError, free_ports

JARS = "hdfs"
_DAEMONS = "org.apache.hadoop.hdfs.server"
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true", "-Djava.awt.headless=true")
_LOGGING = """log4j.rootLogger=WARN,A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%p %c{2}: %m%n
"""
_LIVE = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"


def is_installed() -> bool:
    """Whether all jars are in the cache."""
    return has_artifacts(listed_artifacts(JARS))


def install_hdfs() -> list[Path]:
    """The jars. Downloads what is missing. Raises InstallError or ToolchainError."""
    return locked_artifacts(listed_artifacts(JARS))


class HdfsServer(DatabaseServer):
    """One NameNode and one DataNode, without permissions and Kerberos. A context manager. `port`: of the NameNode."""

    def __init__(self) -> None:
        super().__init__("HDFS", ("root",), {})
        self._java = toolchain.java_home() / "bin" / "java"
        self._classpath = os.pathsep.join([str(self._folder.path), *map(str, install_hdfs())])
        (self._http_port,) = free_ports(1)
        self._data_node: subprocess.Popen[bytes] | None = None

    def connection(self, database: str = "") -> str:
        """The URL of a folder."""
        return f"hdfs://{HOST}/{database}"

    def start(self) -> None:
        """Start both. Raises ServerError."""
        super().start()
        self._data_node = self._user.start(self._daemon("datanode.DataNode"), log=self._folder.log)
        deadline = time.monotonic() + READY_S_MAX
        while not self._has_data_node():
            if self._data_node.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"The DataNode did not start. The end of its log: {self._folder.end_of_log()}")
            time.sleep(0.1)

    def kill(self) -> None:
        """End both at once."""
        if self._data_node is not None:
            self._crash(self._data_node)
            self._data_node = None
        super().kill()

    def _initialize(self) -> None:
        # The pages of both, which their jars lack: without these folders they do not start.
        for pages in ("hdfs", "datanode"):
            (self._folder.path / "webapps" / pages / "WEB-INF").mkdir(parents=True)
        (self._folder.path / "log4j.properties").write_text(_LOGGING)
        (self.port,) = free_ports(1)
        self._configure()
        self._run([*self._daemon("namenode.NameNode"), "-format", "-nonInteractive", "-force"])

    def _configure(self) -> None:
        folder = self._folder.path
        nowhere = dict.fromkeys(("dfs.datanode.address", "dfs.datanode.http.address", "dfs.datanode.ipc.address"), f"{HOST}:0")
        self._write("core-site.xml", {"fs.defaultFS": f"hdfs://{HOST}:{self.port}", "hadoop.tmp.dir": str(folder / "tmp")})
        self._write(
            "hdfs-site.xml",
            {
                **nowhere,
                "dfs.namenode.http-address": f"{HOST}:{self._http_port}",
                "dfs.namenode.name.dir": str(folder / "names"),
                "dfs.datanode.data.dir": str(folder / "blocks"),
                "dfs.replication": "1",
                "dfs.permissions.enabled": "false",
            },
        )

    def _write(self, name: str, settings: Mapping[str, str]) -> None:
        items = "".join(f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items())
        (self._folder.path / name).write_text(f"<configuration>{items}</configuration>")

    def _daemon(self, main: str) -> list[str | Path]:
        return [self._java, *_JAVA_OPTIONS, "-cp", self._classpath, f"{_DAEMONS}.{main}"]

    def _command(self, port: int) -> list[str | Path]:
        assert port == self.port, "the port is in the configuration"
        return self._daemon("namenode.NameNode")

    def _answers(self, port: int) -> bool:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return True
        return False

    def _has_data_node(self) -> bool:
        with suppress(OSError, ValueError), urllib.request.urlopen(f"http://{HOST}:{self._http_port}{_LIVE}", timeout=5) as answer:
            return bool(json.load(answer)["beans"][0]["NumLiveDataNodes"])
        return False
