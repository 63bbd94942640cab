"""The plots of the pages, as SVG: ratios on one logarithmic axis, seconds as bars, growth on two logarithmic axes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from benchmarks.figures import Spread, WorkResult, own_side, seconds_of, sides_of, times_faster
from benchmarks.peers import SIDES
from benchmarks.report import ratio_text

WIDTH = 940
_WORK, _SIDE, _VALUE = 270, 90, 150
"""Columns beside the plot: the work, the side, and the value as text."""
_ROW, _AXIS = 20, 24
_WORK_LETTERS = 40
_STEPS = (1, 2, 5)
_TICKS_MAX = 11
_COLOURS = ("#0b6e99", "#c8372d", "#1d7a3c", "#d9a441", "#7a4fa3", "#5b6776", "#c2558d", "#2aa198", "#8a5a2b", "#3b4cc0")
_PANEL, _PANEL_HEIGHT, _MARGIN, _LEGEND_ROW, _LEGEND_COLUMNS = 300, 240, 44, 18, 3
_PEER_DASH = "5 3"


def ratios(results: Sequence[WorkResult], bounds: tuple[float, float]) -> str:
    """How many times as fast objcat was as each other side: a point for the median, a line from the least to the greatest.

    bounds: the ends of the axis. Works without a ratio have no row. Empty when there is none.
    """
    shapes, y = [], float(_AXIS)
    for result in results:
        faster = times_faster(result)
        for number, side in enumerate(side for side in sides_of(result) if side in faster):
            shapes.append(_ratio(result.work if number == 0 else "", side, faster[side], y + _ROW / 2, bounds))
            y += _ROW
        y += 8 if faster else 0
    return _svg([*_axis(bounds, y), *shapes], y) if shapes else ""


def bounds_of(results: Sequence[WorkResult]) -> tuple[float, float]:
    """The ends of an axis on which all ratios lie, and 1."""
    spreads = [value for result in results for value in times_faster(result).values()]
    low, high = min([0.8, *(value.low for value in spreads)]), max([1.25, *(value.high for value in spreads)])
    return low / 1.1, high * 1.1


def seconds(result: WorkResult) -> str:
    """Bars from zero for medians, with a line from the least to the greatest value. Empty when nothing was measured."""
    sides = {side: seconds_of(result.samples[side]) for side in sides_of(result)}
    if not sides:
        return ""
    widest = max(value.high for value in sides.values()) or 1.0
    scale = (WIDTH - _SIDE - _VALUE) / widest
    shapes = []
    for number, (side, value) in enumerate(sides.items()):
        y = number * _ROW + _ROW / 2
        is_own = side == own_side(result)
        shapes += [
            _text(0, y, side, "own" if is_own else ""),
            f'<rect class="{SIDES[side].role}" x="{_SIDE}" y="{y - 7:.1f}" width="{max(value.median * scale, 1):.1f}" height="14" rx="2"/>',
            _whisker(_SIDE + value.low * scale, _SIDE + value.high * scale, y),
            _text(_SIDE + max(value.median, value.high) * scale + 8, y, f"{value.median:.3g} s", "own" if is_own else ""),
        ]
    return _svg(shapes, len(sides) * _ROW)


def _ratio(work: str, side: str, value: Spread, y: float, bounds: tuple[float, float]) -> str:
    short = work if len(work) <= _WORK_LETTERS else f"{work[: _WORK_LETTERS - 1]}…"
    whole = f"<title>{escape(work)}</title>" if short != work else ""
    return "".join(
        (
            f"<g>{whole}{_text(0, y, short, 'own')}</g>" if work else "",
            _text(_WORK, y, side),
            _whisker(_place(value.low, bounds), _place(value.high, bounds), y),
            f'<circle class="{SIDES[side].role}" cx="{_place(value.median, bounds):.1f}" cy="{y:.1f}" r="5"/>',
            _text(WIDTH - _VALUE + 12, y, ratio_text(value)),
        )
    )


def _axis(bounds: tuple[float, float], height: float) -> Iterator[str]:
    """Lines at round ratios, as many as fit, with their values above. The one at 1 is emphasized."""
    ticks = [step * 10.0**power for power in range(-3, 6) for step in _STEPS if bounds[0] <= step * 10.0**power <= bounds[1]]
    if len(ticks) > _TICKS_MAX:
        ticks = [tick for tick in ticks if math.log10(tick).is_integer()]
    for tick in ticks:
        x = _place(tick, bounds)
        yield f'<line class="{"one" if tick == 1 else "grid"}" x1="{x:.1f}" x2="{x:.1f}" y1="{_AXIS - 4}" y2="{height:.1f}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{_AXIS - 10}" text-anchor="middle">{tick:g}x</text>'


def _place(value: float, bounds: tuple[float, float]) -> float:
    left, right = _WORK + _SIDE + 6, WIDTH - _VALUE - 6
    low, high = map(math.log, bounds)
    return left + (math.log(value) - low) / (high - low) * (right - left)


def _whisker(left: float, right: float, y: float) -> str:
    """A line with a rim in the colour of the page, so that it is visible on a bar too."""
    path = f"M{left:.1f} {y - 4:.1f}v8m0 -4H{right:.1f}m0 -4v8"
    return f'<path class="rim" d="{path}"/><path class="whisker" d="{path}"/>'


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y + 4:.1f}">{escape(text)}</text>'


def _svg(shapes: Sequence[str], height: float) -> str:
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return f'<div class="scroll"><svg {size} role="img">{"".join(shapes)}</svg></div>'


def growth(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], across: str) -> str:
    """Panels beside one another, each with lines on two logarithmic axes, as a file of its own.

    Args:
        panels: By title, the points of each line by its name. A name has one colour in all panels. Points at 0 are left out. Lines of
            pyiceberg are dashed.
        across: What grows along the horizontal axes.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    shapes: list[str] = []
    for number, (title, lines) in enumerate(panels.items()):
        shapes += _panel(title, lines, names, left=number * (_PANEL + _MARGIN) + _MARGIN, across=across)
    width, top = len(panels) * (_PANEL + _MARGIN) + _MARGIN, _PANEL_HEIGHT + 2 * _MARGIN + 8
    for number, name in enumerate(names):
        x, y = _MARGIN + number % _LEGEND_COLUMNS * (width - _MARGIN) / _LEGEND_COLUMNS, top + number // _LEGEND_COLUMNS * _LEGEND_ROW
        shapes.append(f'<line x1="{x:.0f}" x2="{x + 24:.0f}" y1="{y + 2:.0f}" y2="{y + 2:.0f}" {_stroke(name, names)}/>')
        shapes.append(f'<text x="{x + 30:.0f}" y="{y + 6:.0f}">{escape(name)}</text>')
    height = top + -(-len(names) // _LEGEND_COLUMNS) * _LEGEND_ROW + 8
    style = "text{font:12px sans-serif;fill:#1d2530}.tick{font-size:11px;fill:#69727f}.grid{stroke:#d9dee5}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(shapes)}</svg>\n'
    )


def _panel(
    title: str, lines: Mapping[str, Sequence[tuple[float, float]]], names: Sequence[str], *, left: float, across: str
) -> Iterator[str]:
    points = [point for line in lines.values() for point in line if min(point) > 0]
    (left_power, right_power), (low_power, high_power) = (_powers([point[axis] for point in points]) for axis in (0, 1))
    top, foot = _MARGIN, _MARGIN + _PANEL_HEIGHT

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (math.log10(x) - left_power) / (right_power - left_power) * _PANEL,
            foot - (math.log10(y) - low_power) / (high_power - low_power) * _PANEL_HEIGHT,
        )

    yield f'<text x="{left:.0f}" y="{top - 14}">{escape(title)}</text>'
    for power in range(left_power, right_power + 1):
        x, _ = at(10.0**power, 10.0**low_power)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{foot}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{foot + 15}" text-anchor="middle">{_power(power)}</text>'
    for power in range(low_power, high_power + 1):
        _, y = at(10.0**left_power, 10.0**power)
        yield f'<line class="grid" x1="{left:.1f}" x2="{left + _PANEL:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{left - 5:.1f}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>'
    yield f'<text class="tick" x="{left + _PANEL / 2:.1f}" y="{foot + 32}" text-anchor="middle">{escape(across)}</text>'
    for name, line in lines.items():
        places = [at(*point) for point in line if min(point) > 0]
        yield f'<polyline fill="none" {_stroke(name, names)} points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_colour(name, names)}"/>' for x, y in places)


def _colour(name: str, names: Sequence[str]) -> str:
    return _COLOURS[names.index(name) % len(_COLOURS)]


def _stroke(name: str, names: Sequence[str]) -> str:
    dash = f' stroke-dasharray="{_PEER_DASH}"' if name.startswith("pyiceberg,") else ""
    return f'stroke="{_colour(name, names)}" stroke-width="2"{dash}'


def _power(power: int) -> str:
    """A power of ten, in as few letters as an axis has room for."""
    return f'10<tspan dy="-4" font-size="8">{power}</tspan>'


def _powers(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten around some values, at least one apart."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
