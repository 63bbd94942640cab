"""`objcat report`: one page of HTML about a table that needs nothing else; its plots are SVG in it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer

from objcat.cli.common import Json, Option, TableUrl, open_table
from objcat.cli.history import commit_row
from objcat.cli.output import progress, say, say_json, time_text
from objcat.errors import InvalidInput
from objcat.handle import Table
from objcat.read.explain import bytes_text

COMMITS_MAX = 1000
PARTITIONS_MAX = 60
_WIDTH, _HEIGHT, _LEFT, _FOOT = 960, 220, 64, 28
_COLOURS = {
    "COMMIT": "#2f6fb5",
    "DELTA_COMMIT": "#5fa3d9",
    "COMPACTION": "#3d9a57",
    "CLEAN": "#9a9a9a",
    "ROLLBACK": "#c0392b",
    "RESTORE": "#8e44ad",
    "SAVEPOINT": "#d4a017",
    "REPLACE": "#d35400",
}
_OTHER = "#5d6d7e"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; max-width: 1000px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.1rem; margin-top: 2.2rem } .soft { color: #66717d }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); gap: .8rem; margin: 1rem 0 }
dt { color: #66717d; font-size: .85rem } dd { margin: 0; font-size: 1.15rem }
svg { width: 100%; height: auto; background: #f7f9fb; border: 1px solid #dfe5ea }
svg text { font: 12px system-ui, sans-serif; fill: #66717d }
table { border-collapse: collapse; width: 100% } th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #e4e9ee }
th:first-child, td:first-child { text-align: left; word-break: break-all } th { color: #66717d; font-weight: 500 }
.bar { display: inline-block; height: .7em; background: #5fa3d9; vertical-align: middle } .key span { margin-right: 1.2rem }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .35em }
"""


def report(
    url: TableUrl,
    file: Annotated[str, typer.Argument(help="Where to write the page.")] = "objcat-report.html",
    option: Option = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write one page of HTML about a table: its commits as a picture, sizes, how much is unmerged where, conflicts and requests."""
    target = Path(file)
    if target.exists() and not overwrite:
        raise InvalidInput(f"{file} is there already: take another name, or give --overwrite")
    table = open_table(url, option)
    with progress(f"looking at {table.name}", shown=not as_json):
        page = render(table)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(page, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written ({error.strerror}): name another place") from error
    finally:
        part.unlink(missing_ok=True)
    if as_json:
        say_json({"file": file, "slot": table.snapshot.slot, "bytes": target.stat().st_size})
    else:
        say(f"{file} tells of {table.name} at slot {table.snapshot.slot}: open it in a browser")


def render(table: Table) -> str:
    """The page, of the newest slot and the newest `COMMITS_MAX` commits."""
    stats = table.stats()
    entries = table.history(limit=COMMITS_MAX)
    commits = sorted(({**commit_row(entry, table.id), "at_ms": entry.committed_at_ms} for entry in entries), key=lambda one: one["slot"])
    ratio = stats.log_bytes / stats.base_bytes if stats.base_bytes else None
    facts = {
        "slot": f"{stats.slot:,}",
        "newest commit (UTC)": commits[-1]["committed_at"] if commits else "-",
        "rows": f"{stats.rows:,}" if stats.rows_exact else f"at most {stats.rows:,}",
        "base files": f"{stats.base_files:,}, {bytes_text(stats.base_bytes)}",
        "log objects": f"{stats.log_objects:,}, {bytes_text(stats.log_bytes)}",
        "log to base": "-" if ratio is None else f"{ratio:.1%}",
        "file groups": f"{stats.groups:,}, {stats.groups_unmerged:,} unmerged",
        "partitions": f"{stats.partitions:,}",
    }
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    body = "\n".join(
        [
            f"<h1>{escape(table.name)}</h1><p class=soft>{escape(table.fileio.url)}</p><dl>{shown}</dl>",
            _timeline(commits),
            _partitions(table.partitions().to_pylist()),
            _conflicts(commits),
            _requests(commits),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(table.name)}</title>\n<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _timeline(commits: Sequence[Mapping[str, Any]]) -> str:
    """A bar a commit, by its time; as high as the bytes that it wrote."""
    if not commits:
        return ""
    first, last = commits[0]["at_ms"], commits[-1]["at_ms"]
    most = max(commit["bytes"] for commit in commits) or 1
    width = max(1.5, min(14.0, (_WIDTH - _LEFT) / len(commits) * 0.7))
    plot = _HEIGHT - _FOOT - 12
    marks = []
    for commit in commits:
        x = _LEFT + (commit["at_ms"] - first) / max(1, last - first) * (_WIDTH - _LEFT - width - 8)
        high = max(3.0, commit["bytes"] / most * plot)
        said = (
            f"slot {commit['slot']}: {commit['action']} at {commit['committed_at']}, {commit['rows']:,} rows, {bytes_text(commit['bytes'])}"
        )
        colour = _COLOURS.get(commit["action"], _OTHER)
        marks.append(
            f'<rect x="{x:.1f}" y="{_HEIGHT - _FOOT - high:.1f}" width="{width:.1f}" height="{high:.1f}" fill="{colour}" opacity=".85">'
            f"<title>{escape(said)}</title></rect>"
        )
    seen = Counter(commit["action"] for commit in commits)
    key = "".join(f'<span><i style="background:{_COLOURS.get(name, _OTHER)}"></i>{escape(name)} {n:,}</span>' for name, n in seen.items())
    foot = _HEIGHT - 9
    return (
        f"<h2>Commits</h2><p class=key>{key}</p>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="commits by time, as high as the bytes that they wrote">'
        f'<text x="6" y="20">{escape(bytes_text(most))}</text><text x="6" y="{_HEIGHT - _FOOT}">0</text>'
        f'<line x1="{_LEFT}" x2="{_WIDTH - 4}" y1="{_HEIGHT - _FOOT}" y2="{_HEIGHT - _FOOT}" stroke="#c3ccd4"/>{"".join(marks)}'
        f'<text x="{_LEFT}" y="{foot}">{time_text(first)}</text>'
        f'<text x="{_WIDTH - 8}" y="{foot}" text-anchor="end">{time_text(last)} UTC</text></svg>'
        "<p class=soft>A bar is a commit, as high as the bytes that it wrote. Point at one to read what it did.</p>"
    )


def _partitions(partitions: Sequence[Mapping[str, Any]]) -> str:
    most = max((one["base_bytes"] + one["log_bytes"] for one in partitions), default=0) or 1
    ordered = sorted(partitions, key=lambda one: one["base_bytes"] + one["log_bytes"], reverse=True)
    rows = []
    for one in ordered[:PARTITIONS_MAX]:
        size = one["base_bytes"] + one["log_bytes"]
        ratio = "-" if not one["base_bytes"] else f"{one['log_bytes'] / one['base_bytes']:.1%}"
        bar = f'<span class=bar style="width:{size / most * 120:.0f}px"></span>'
        cells = (f"{one['groups']:,}", f"{one['groups_unmerged']:,}", bytes_text(one["base_bytes"]), bytes_text(one["log_bytes"]), ratio)
        rows.append(f"<tr><td>{escape(one['partition']) or 'the whole table'}</td><td>{bar}</td>{_cells(cells)}</tr>")
    more = len(ordered) - PARTITIONS_MAX
    left = f"<p class=soft>{more:,} smaller ones more: `objcat partitions` shows all.</p>" if more > 0 else ""
    head = "<tr><th>partition<th><th>file groups<th>unmerged<th>base<th>log<th>log to base</tr>"
    return f"<h2>Partitions</h2><table>{head}{''.join(rows)}</table>{left}"


def _conflicts(commits: Sequence[Mapping[str, Any]]) -> str:
    counted = [commit for commit in commits if commit["attempts"] is not None]
    lost = [commit for commit in counted if commit["slots_lost"]]
    again = [commit for commit in counted if commit["attempts"] > 1]
    rows = [
        ("commits that lost a slot to another writer", f"{len(lost):,}"),
        ("slots lost, together", f"{sum(commit['slots_lost'] for commit in lost):,}"),
        ("commits that had to write again", f"{len(again):,}"),
        ("most tries of one commit", f"{max((commit['attempts'] for commit in counted), default=0):,}"),
    ]
    return "<h2>Conflicts</h2><table>" + "".join(f"<tr><td>{escape(name)}</td>{_cells([value])}</tr>" for name, value in rows) + "</table>"


def _requests(commits: Sequence[Mapping[str, Any]]) -> str:
    """What commits asked of the store until they were durable, by kind."""
    total: Counter[str] = Counter()
    counted = [commit["requests"] for commit in commits if commit["requests"]]
    for requests in counted:
        total.update(requests)
    rows = [(name, f"{count:,}", f"{count / len(counted):.1f}") for name, count in total.most_common()]
    head = "<tr><th>request<th>together<th>a commit</tr>"
    body = "".join(f"<tr><td>{escape(name)}</td>{_cells(values)}</tr>" for name, *values in rows)
    return f"<h2>Requests of {len(counted):,} commits</h2><table>{head}{body}</table>"


def _cells(values: Iterable[str]) -> str:
    return "".join(f"<td>{escape(value)}</td>" for value in values)
