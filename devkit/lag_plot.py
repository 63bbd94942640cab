"""A plot of how far a lake is behind its source, as text for a terminal and as SVG."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT, _LEFT, _FOOT, _TOP = 960, 260, 56, 30, 24


@dataclass(frozen=True, slots=True)
class LagPoint:
    """A commit of the lake.

    Args:
        at_s: when it was made.
        newest_s: when the newest row in it was written at the source, by the same clock.
    """

    at_s: float
    newest_s: float


@dataclass(frozen=True, slots=True)
class LagMark:
    """Something that happened. sign: one character under the plot."""

    at_s: float
    sign: str
    what: str


class LagPlot:
    """How old the newest row in the lake is, over time: it grows by a second each second, and falls with each commit.

    Args:
        points: commits in order, at least two.
        marks: what happened meanwhile.
    """

    def __init__(self, points: Sequence[LagPoint], marks: Sequence[LagMark]) -> None:
        self._points = points
        self._marks = marks
        self._times = [point.at_s for point in points]
        self.first_s, self.last_s = self._times[0], self._times[-1]

    def lag_s(self, at_s: float) -> float:
        """The age of the newest row just before a moment."""
        at = max(0, bisect_right(self._times, at_s) - 1)
        if self._times[at] == at_s and at > 0:
            at -= 1
        return at_s - self._points[at].newest_s

    def highest_s(self, begin_s: float, end_s: float) -> float:
        """The greatest lag between two moments."""
        inside = [at_s for at_s in self._times if begin_s < at_s <= end_s]
        return max(self.lag_s(at_s) for at_s in (*inside, end_s))

    def median_s(self) -> float:
        """The lag that was not exceeded half of the time."""
        seen = sorted(self.lag_s(self.first_s + (self.last_s - self.first_s) * (step + 0.5) / 1000) for step in range(1000))
        return seen[len(seen) // 2]

    def text(self, *, columns: int = 96, rows: int = 8) -> list[str]:
        """Lines for a terminal: a column is a span of time, and its height the greatest lag in it."""
        span = (self.last_s - self.first_s) / columns
        values = [self.highest_s(self.first_s + at * span, self.first_s + (at + 1) * span) for at in range(columns)]
        top = _ceiling(max(values))
        eighths = [max(1, round(value / top * rows * 8)) for value in values]
        lines = []
        for row in range(rows - 1, -1, -1):
            label = f"{top * (row + 1) / rows:6.2f} s" if (rows - 1 - row) % 2 == 0 else ""
            lines.append(f"{label:>9} ┤" + "".join(_EIGHTHS[min(8, max(0, one - 8 * row))] for one in eighths))
        signs = [" "] * (columns + 1)
        for mark in self._marks:
            signs[min(columns, max(0, int((mark.at_s - self.first_s) / span)))] = mark.sign
        lines.append(f"{'':>9} └" + "".join("─" if sign == " " else sign for sign in signs))
        end = f"{self.last_s:.0f} s"
        lines.append(f"{'':>11}{f'{self.first_s:.0f} s':<{columns - len(end)}}{end}")
        return lines

    def svg(self) -> str:
        """The same as an image, with each commit."""
        top = _ceiling(max(self.lag_s(at_s) for at_s in self._times))
        wide, tall = _WIDTH - _LEFT - 12, _HEIGHT - _FOOT - _TOP
        span = self.last_s - self.first_s

        def place(at_s: float, lag_s: float) -> str:
            return f"{_LEFT + (at_s - self.first_s) / span * wide:.1f},{_HEIGHT - _FOOT - lag_s / top * tall:.1f}"

        line = [place(self.first_s, self.first_s - self._points[0].newest_s)]
        for point in self._points[1:]:
            line += [place(point.at_s, self.lag_s(point.at_s)), place(point.at_s, point.at_s - point.newest_s)]
        parts = []
        for step in range(5):
            x_y = place(self.first_s, top * step / 4).split(",")
            parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 12}" y1="{x_y[1]}" y2="{x_y[1]}" stroke="#ccc"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{float(x_y[1]) + 4:.1f}" text-anchor="end">{top * step / 4:.2f} s</text>')
        for mark in self._marks:
            x = place(mark.at_s, 0).split(",")[0]
            parts.append(f'<line x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{_HEIGHT - _FOOT}" stroke="#c33" stroke-dasharray="4 3"/>')
            parts.append(f'<text x="{x}" y="{_TOP - 10}" text-anchor="middle">{escape(mark.what)}</text>')
        parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="#36c" stroke-width="1.5"/>')
        parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 10}">{self.first_s:.0f} s</text>')
        parts.append(f'<text x="{_WIDTH - 12}" y="{_HEIGHT - 10}" text-anchor="end">{self.last_s:.0f} s</text>')
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
            f'<title>Age of the newest row</title><rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>{"".join(parts)}</svg>\n'
        )


def _ceiling(value: float) -> float:
    """A round number of seconds that is not less."""
    power = 10.0 ** math.floor(math.log10(max(value, 0.01)))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value)
