"""A fault proxy that knows what a request is to the protocol, and can hold it at a named point until the schedule says go."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote

from devkit.fault_proxy import Fault, FaultKind, FaultProxy

Point = Literal["intent", "data", "slot", "read", "look", "delete", "other"]
"""Writes of an intent, of a data file, of a slot of the log; a read of a slot; a look at an intent; a deletion."""

WAIT_S_MAX = 60
_NAME = re.compile(rb'"name": *"([^"]+)"')
_TXN = re.compile(r"(?:intents|data)/([^/.]+)[./]")


def key_of(request: Any) -> str:
    """The object that a request is about. An upload to GCS names it in its body."""
    if request.path.startswith("/upload/"):
        named = _NAME.search(request.body)
        return named.group(1).decode() if named else ""
    return unquote(request.path)


def point_of(request: Any) -> Point:
    """What a request is to the protocol."""
    key = key_of(request)
    if request.method == "DELETE" or (request.method == "POST" and request.query.startswith("delete")):
        return "delete"
    if request.method == "GET" and "/log/" in key:
        return "read"
    if request.method in ("GET", "HEAD") and "/intents/" in key:
        return "look"
    if request.method not in ("PUT", "POST"):
        return "other"
    folders: dict[str, Point] = {"/intents/": "intent", "/data/": "data", "/log/": "slot"}
    return next((point for folder, point in folders.items() if folder in f"/{key}"), "other")


@dataclass(slots=True)
class Hold:
    """The nth request at a point waits, before the server sees it or after it did but before the client knows."""

    point: Point
    when: Literal["before", "after"]
    nth: int = 1
    seen: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S_MAX), f"the request {self.when} {self.point} was never let go"


class Gate(FaultProxy):
    """The way of one actor to the store."""

    def __init__(self, upstream: str, scheme: str) -> None:
        self._holds: list[Hold] = []
        self._now = threading.local()
        self.txns: list[str] = []
        """The transactions that the actor has announced or written data for, in order: either request may come first."""
        super().__init__(upstream, scheme)

    def fault(self, kind: FaultKind, point: Point, *, times: int = 1, nth: int = 1, code: int = 503) -> None:
        """Plan a fault of requests at a point."""
        self.plan(Fault(kind, lambda *_: self._now.point == point, times=times, nth=nth, code=code))

    def hold(self, point: Point, when: Literal["before", "after"], nth: int = 1) -> Hold:
        """The nth request at the point from now on waits until the hold is opened."""
        hold = Hold(point, when, nth)
        self._holds.append(hold)
        return hold

    def open_all(self) -> None:
        """Let everything go, whatever happens next."""
        for hold in self._holds:
            hold.opened.set()

    @property
    def now(self) -> tuple[Point, str]:
        """What the request is that this thread is at, and the object that it is about. For the match of a fault."""
        return self._now.point, self._now.key

    def _handle(self, request: Any) -> Any:
        self._now.point, self._now.key = point_of(request), key_of(request)
        if self._now.point in ("intent", "data"):
            found = _TXN.search(key_of(request))
            if found and found.group(1) not in self.txns:
                self.txns.append(found.group(1))
        held = [hold for hold in self._holds if self._is_due(hold)]
        for hold in held:
            if hold.when == "before":
                hold.wait()
        outcome = super()._handle(request)
        for hold in held:
            if hold.when == "after":
                hold.wait()
        return outcome

    def _is_due(self, hold: Hold) -> bool:
        if hold.point != self._now.point or hold.opened.is_set():
            return False
        hold.seen += 1
        return hold.seen == hold.nth
