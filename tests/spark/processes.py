"""The processes of an application that was started in a session of its own: driver, JVM, Python workers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def of_session(leader: int) -> list[int]:
    """Those that are not over yet."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found


def jvms_of(leader: int) -> list[int]:
    """The JVM of an application, once there is one."""
    found = []
    for pid in of_session(leader):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                found.append(pid)
    return found
