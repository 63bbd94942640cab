"""Counts and times of requests, as Prometheus reads them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Iterable

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper limits of the histogram of seconds."""
TABLES_MAX = 1000
"""The most tables with values of their own. Those that were loaded longest ago go first."""


class RequestMetrics:
    """What a server has answered since it started. Safe for many threads. Each server counts its own requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self._seconds: dict[str, list[int]] = {}
        self._seconds_sum: defaultdict[str, float] = defaultdict(float)
        self._slots: OrderedDict[str, tuple[int, int | None]] = OrderedDict()
        self._mirror_failures = 0

    def note_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one answer. `route`: the pattern of the path, without names."""
        with self._lock:
            self._requests[route, method, status] += 1
            buckets = self._seconds.setdefault(route, [0] * (len(SECONDS_BUCKETS) + 1))
            buckets[bisect_left(SECONDS_BUCKETS, seconds)] += 1
            self._seconds_sum[route] += seconds

    def note_table(self, name: str, slot: int, lag_slots: int | None) -> None:
        """Remember what was served of a table. `lag_slots`: how far its mirror is behind the table, None where that is not known."""
        with self._lock:
            self._slots[name] = (slot, lag_slots)
            self._slots.move_to_end(name)
            while len(self._slots) > TABLES_MAX:
                self._slots.popitem(last=False)

    def note_mirror_failure(self) -> None:
        """Count a mirror that stayed behind its table when that was loaded."""
        with self._lock:
            self._mirror_failures += 1

    def text(self, *, tables: int | None, under_way: int) -> str:
        """All metrics in the text format of Prometheus.

        Args:
            tables: how many tables the catalog shows, None while it has not been read.
            under_way: how many requests are under way.
        """
        with self._lock:
            lines = _family(
                "objcat_serve_requests_total",
                "counter",
                "Answers by route, method and status.",
                (
                    (_labels(route=route, method=method, status=str(status)), count)
                    for (route, method, status), count in sorted(self._requests.items())
                ),
            )
            lines += self._histogram()
            lines += _family("objcat_serve_requests_under_way", "gauge", "Requests that are being answered.", [("", under_way)])
            if tables is not None:
                lines += _family("objcat_serve_tables", "gauge", "Tables that the catalog shows.", [("", tables)])
            loaded = sorted(self._slots.items())
            lines += _family(
                "objcat_serve_table_slot", "gauge", "The slot that was served last.", ((_labels(table=t), slot) for t, (slot, _) in loaded)
            )
            lines += _family(
                "objcat_serve_mirror_lag_slots",
                "gauge",
                "Slots of its log by which the mirror was behind its table when it was served last.",
                ((_labels(table=t), lag) for t, (_, lag) in loaded if lag is not None),
            )
            lines += _family(
                "objcat_serve_mirror_failures_total",
                "counter",
                "Mirrors that could not catch up before a table was loaded.",
                [("", self._mirror_failures)],
            )
        return "".join(f"{line}\n" for line in lines)

    def _histogram(self) -> list[str]:
        name = "objcat_serve_request_seconds"
        lines = [f"# HELP {name} Seconds from a request to its answer.", f"# TYPE {name} histogram"]
        for route, buckets in sorted(self._seconds.items()):
            count = 0
            for limit, more in zip((*map(_number, SECONDS_BUCKETS), "+Inf"), buckets, strict=True):
                count += more
                lines.append(f"{name}_bucket{_labels(route=route, le=limit)} {count}")
            lines.append(f"{name}_sum{_labels(route=route)} {_number(self._seconds_sum[route])}")
            lines.append(f"{name}_count{_labels(route=route)} {count}")
        return lines if self._seconds else []


def _family(name: str, kind: str, meaning: str, values: Iterable[tuple[str, float]]) -> list[str]:
    lines = [f"{name}{labels} {_number(value)}" for labels, value in values]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *lines] if lines else []


def _labels(**labels: str) -> str:
    escaped = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{','.join(escaped)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
