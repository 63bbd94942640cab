"""The page of `objcat report`: HTML that loads and runs nothing, with plots in SVG. Every text in it is escaped.

Its policy (CSP) lets a browser use only its one style sheet, by digest; so there are no style attributes.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import msgspec

from objcat.cli.output import time_text
from objcat.cli.report_style import ACTIONS, STYLE
from objcat.common.terminal import visible
from objcat.inspection.explain import bytes_text
from objcat.inspection.snapshot_stats import TableStats
from objcat.metadata.column_defaults import is_said, shown_default
from objcat.metadata.maintenance_policy import Policy
from objcat.metadata.schema import type_text
from objcat.metadata.table_spec import TableSpec

PARTITIONS_MAX = 60
SILENT_S = 60
"""Silence that counts; writers touch their intent every ten seconds."""
DEAD_S = 600
_WIDTH, _HEIGHT, _LEFT, _FOOT, _TOP = 960, 240, 64, 28, 12
_MANY_COLLISIONS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit. `took_ms`: from its request to its slot, by the clocks of its writer and the store."""

    slot: int
    action: str
    at_ms: int
    took_ms: int
    rows: int
    bytes: int
    attempts: int | None
    slots_lost: int | None
    requests: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ShownSavepoint:
    """A savepoint. `at_ms`: when its slot was committed, if that is known."""

    slot: int
    at_ms: int | None
    name: str


@dataclass(frozen=True, slots=True)
class ShownWriter:
    """An operation in progress, or a plan that waits for an executor. `seen_ms`: its last sign of life, by the store's clock."""

    txn: str
    action: str
    host: str
    engine: str
    since_ms: int | None
    seen_ms: int
    is_plan: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What the page shows. `url`: the table's name in commands. `due`: why a compaction is due, by the properties."""

    name: str
    url: str
    place: str
    now_ms: int
    stats: TableStats
    spec: TableSpec
    bucket_counts: Mapping[str, int]
    policy: Policy
    due: str | None
    readable_from: int
    readable_from_ms: int | None
    saved: Sequence[ShownSavepoint]
    writers: Sequence[ShownWriter]
    commits: Sequence[Commit]
    partitions: Sequence[Mapping[str, Any]]


def page_of(looked: Looked) -> str:
    """The page."""
    parts = [_head(looked), _advice(looked), _timeline(looked.commits), _readable(looked), _writers(looked), _schema(looked)]
    parts += [_settings(looked), _partitions(looked.partitions), _times(looked.commits), _conflicts(looked.commits)]
    parts.append(_requests(looked.commits))
    return document(looked.name, parts)


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page from its parts, with the policy that lets a browser use the style sheet alone."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    csp = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{csp}">\n'
        '<meta name="viewport" content="width=device-width">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{text_of(title)}</title>\n<style>{STYLE}</style>\n" + "\n".join(part for part in parts if part) + "\n</html>\n"
    )


def text_of(value: object) -> str:
    """A value as text of HTML."""
    return escape(visible(str(value)))


def _head(looked: Looked) -> str:
    stats, commits = looked.stats, looked.commits
    ratio = f"{stats.log_bytes / stats.base_bytes:.1%}" if stats.base_bytes else "-"
    facts = {
        "slot": f"{stats.slot:,}",
        "newest commit (UTC)": time_text(commits[-1].at_ms) if commits else "-",
        "rows": f"{stats.rows:,}" if stats.rows_exact else f"at most {stats.rows:,}",
        "base files": f"{stats.base_files:,}, {bytes_text(stats.base_bytes)}",
        "log objects": f"{stats.log_objects:,}, {bytes_text(stats.log_bytes)}",
        "log to base": ratio,
        "file groups": f"{stats.groups:,}, {stats.groups_unmerged:,} unmerged",
        "partitions": f"{stats.partitions:,}",
    }
    told = f"{looked.place}, looked at {time_text(looked.now_ms)} UTC"
    return f'<h1>{text_of(looked.name)}</h1><p class="soft">{text_of(told)}</p>{facts_list(facts)}'


# ---- what to do


def facts_list(facts: Mapping[str, str]) -> str:
    """Values with their names, side by side."""
    return f"<dl>{''.join(f'<div><dt>{text_of(name)}</dt><dd>{text_of(value)}</dd></div>' for name, value in facts.items())}</dl>"


def _advice(looked: Looked) -> str:
    found = list(advice_of(looked))
    if not found:
        return '<h2>Advice</h2><p class="good">Nothing to do.</p>'
    items = "".join(f"<li>{text_of(why)}: <code>{text_of(command)}</code></li>" for why, command in found)
    return f'<h2>Advice</h2><ul class="advice">{items}</ul>'


def advice_of(looked: Looked) -> Iterable[tuple[str, str]]:
    """What is wrong or due, each with the command to run."""
    stats, place = looked.stats, shlex.quote(looked.url)
    if looked.due is not None or stats.groups_unmerged * 2 >= max(1, stats.groups):
        why = f", and {looked.due}" if looked.due is not None else ""
        yield f"{stats.groups_unmerged:,} of {stats.groups:,} file groups are unmerged{why}", f"objcat compact {place}"
    if stats.groups_unmerged and not looked.policy.compacts:
        name = ".".join(f"`{part}`" for part in looked.name.split("."))
        yield "no property says when writers compact", f"ALTER TABLE {name} SET TBLPROPERTIES ('compact_after_commits' = '20')"
    dead = [one for one in looked.writers if not one.is_plan and looked.now_ms - one.seen_ms >= DEAD_S * 1000]
    if dead:
        oldest = max(looked.now_ms - one.seen_ms for one in dead)
        count = "1 writer has" if len(dead) == 1 else f"{len(dead):,} writers have"
        yield f"{count} given no sign of life for up to {_span(oldest)}", f"objcat rollback {place} --older-than {DEAD_S}"
    plans = sum(one.is_plan for one in looked.writers)
    if plans:
        yield f"{'1 plan waits' if plans == 1 else f'{plans:,} plans wait'} for somebody who executes them", f"objcat maintain {place}"
    counted = [commit for commit in looked.commits if commit.attempts is not None]
    again = sum((commit.attempts or 0) > 1 for commit in counted)
    if counted and again > _MANY_COLLISIONS * len(counted):
        yield (
            f"{again:,} of {len(counted):,} commits had to write again, since another one touched the same file groups",
            f"objcat schema {place}, to see whether more buckets or partitions would keep the writers apart",
        )


# ---- commits


def _timeline(commits: Sequence[Commit]) -> str:
    """A bar for each commit, by its time; its height is the logarithm of the bytes written."""
    if not commits:
        return ""
    first, last = commits[0].at_ms, commits[-1].at_ms
    low, high = _decades(commit.bytes for commit in commits)
    width = max(1.5, min(14.0, (_WIDTH - _LEFT) / len(commits) * 0.7))
    bottom, plot = _HEIGHT - _FOOT, _HEIGHT - _FOOT - _TOP

    def above(size: float) -> float:
        """The height of a size, in pixels."""
        return (math.log10(size) - low) / (high - low) * plot

    lines = []
    step = max(1, math.ceil((high - low) / 6))
    for power in range(low, high + 1, step):
        y = bottom - above(10.0**power)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 4}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text_of(bytes_text(10**power))}</text>')
    marks = []
    for commit in commits:
        x = _LEFT + (commit.at_ms - first) / max(1, last - first) * (_WIDTH - _LEFT - width - 8)
        tall = max(3.0, above(commit.bytes)) if commit.bytes else 3.0
        said = f"slot {commit.slot}: {commit.action} at {time_text(commit.at_ms)}, {commit.rows:,} rows, {bytes_text(commit.bytes)}"
        marks.append(
            f'<rect class="{_class(commit.action)}" x="{x:.1f}" y="{bottom - tall:.1f}" width="{width:.1f}" height="{tall:.1f}">'
            f"<title>{text_of(said)}</title></rect>"
        )
    seen = Counter(commit.action for commit in commits)
    key = "".join(f"<span>{_swatch(name)}{text_of(name)} {count:,}</span>" for name, count in seen.items())
    foot = _HEIGHT - 9
    return (
        f'<h2>Commits</h2><p class="key">{key}</p>'
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="commits by time and bytes">'
        f"{''.join(lines)}{''.join(marks)}"
        f'<text x="{_LEFT}" y="{foot}">{time_text(first)}</text>'
        f'<text x="{_WIDTH - 8}" y="{foot}" text-anchor="end">{time_text(last)} UTC</text></svg>'
        '<p class="soft">A bar is a commit. Its height is the bytes that it wrote, on a logarithmic axis; the lowest ones wrote none. '
        "Point at one to read what it did.</p>"
    )


def _swatch(action: str) -> str:
    return f'<svg class="swatch" viewBox="0 0 10 10"><rect class="{_class(action)}" width="10" height="10"/></svg>'


def _decades(sizes: Iterable[int]) -> tuple[int, int]:
    """The powers of ten around all sizes; the smallest one is well above the lower."""
    there = [size for size in sizes if size > 0] or [10]
    low, high = math.floor(math.log10(min(there) / 2)), math.ceil(math.log10(max(there)))
    return low, max(high, low + 1)


def _class(action: str) -> str:
    return f"a-{action}" if action in ACTIONS else "a-OTHER"


def _times(commits: Sequence[Commit]) -> str:
    """How long commits took, by action."""
    by_action: dict[str, list[int]] = {}
    for commit in commits:
        by_action.setdefault(commit.action, []).append(commit.took_ms)
    rows = []
    for action, took in sorted(by_action.items()):
        ordered = sorted(took)
        quantiles = [_span(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) for share in (0.5, 0.95, 1.0)]
        rows.append((action, f"{len(ordered):,}", *quantiles))
    note = '<p class="soft">From the request of an operation to its slot, by the clocks of its writer and of the store.</p>'
    return table_of("Commit times", ("action", "commits", "median", "95 %", "longest"), rows, note) if rows else ""


# ---- what is readable, and who is at work


def _readable(looked: Looked) -> str:
    newest = looked.commits[-1].at_ms if looked.commits else None
    rows = [
        ("every slot from", f"{looked.readable_from:,}", _moment(looked.readable_from_ms), ""),
        ("to", f"{looked.stats.slot:,}", _moment(newest), ""),
        *(("savepoint", f"{one.slot:,}", _moment(one.at_ms), one.name) for one in looked.saved),
    ]
    return table_of("What can be read", ("", "slot", "committed (UTC)", "name"), rows, of_words=True)


def _writers(looked: Looked) -> str:
    rows = []
    for one in looked.writers:
        silent_s = (looked.now_ms - one.seen_ms) / 1000
        state = "a plan" if one.is_plan else "no sign of life" if silent_s >= SILENT_S else "at work"
        who = f"{one.engine} on {one.host}"
        rows.append((one.txn, state, one.action, who, _moment(one.since_ms), f"{_span(int(silent_s * 1000))} ago"))
    head = ("transaction", "state", "action", "who", "since (UTC)", "last sign of life")
    return (
        table_of("Writers and plans", head, rows, of_words=True)
        if rows
        else '<h2>Writers and plans</h2><p class="soft">Nobody is at work.</p>'
    )


# ---- what the table is


def _schema(looked: Looked) -> str:
    spec = looked.spec
    key = {column.name for column in spec.key_columns}
    ordering = {column.name for column in spec.ordering_columns}
    roles = {"key": key, "ordering": ordering, "partition": {column.name for column in spec.partition_columns}}
    rows = []
    for column in spec.table_schema.columns:
        null = "yes" if column.nullable and column.name not in key | ordering else "no"
        said = ", ".join(
            [
                *(role for role, names in roles.items() if column.name in names),
                *([f"default {shown_default(column.write_default)}"] if is_said(column.write_default) else []),
                *([f"{shown_default(column.initial_default)} in older rows"] if is_said(column.initial_default) else []),
            ]
        )
        rows.append((column.name, type_text(column.type), null, said))
    return table_of("Schema", ("column", "type", "null", "role"), rows, of_words=True)


def _settings(looked: Looked) -> str:
    spec = looked.spec
    columns = ", ".join(column.name for column in spec.bucket_columns)
    split = [f"{name or 'the table'}: {count:,}" for name, count in sorted(looked.bucket_counts.items())]
    rows = [
        ("table type", spec.table_type),
        ("key", ", ".join(column.name for column in spec.key_columns) or "none"),
        ("index", f"{msgspec.to_builtins(spec.index)['type']}{f' of {columns}' if columns else ''}"),
        ("buckets", f"{spec.index.count:,}" if not spec.is_located else "-"),
        ("buckets since a split", ", ".join(split) or "as above"),
        ("partitioned by", ", ".join(field.name for field in spec.partitioning.fields) or "nothing"),
        *_policy(looked.policy),
        *((f"property {name}", value) for name, value in sorted(spec.properties.items())),
    ]
    return table_of("Index, policy and properties", ("", ""), rows, of_words=True)


def _policy(policy: Policy) -> Iterable[tuple[str, str]]:
    triggers = {"commits": policy.compact_after_commits, "bytes": policy.compact_after_bytes, "s": policy.compact_after_s}
    kept = {"commits": policy.retention.commits, "versions": policy.retention.versions, "hours": policy.retention.hours}
    yield "compacted by writers", f"after {_any_of(triggers)}" if policy.compacts else "never: by `objcat compact`"
    yield "cleaned by writers", "yes" if policy.auto_clean else "no: by `objcat clean`"
    yield "cleaning keeps", _any_of(kept)
    yield "buckets double", "when told" if policy.split_above_bytes is None else f"above {bytes_text(policy.split_above_bytes)} each"


def _any_of(said: Mapping[str, int | None]) -> str:
    return " or ".join(f"{count:,} {unit}" for unit, count in said.items() if count is not None)


def _partitions(partitions: Sequence[Mapping[str, Any]]) -> str:
    most = max((one["base_bytes"] + one["log_bytes"] for one in partitions), default=0) or 1
    ordered = sorted(partitions, key=lambda one: one["base_bytes"] + one["log_bytes"], reverse=True)
    rows = []
    for one in ordered[:PARTITIONS_MAX]:
        size = one["base_bytes"] + one["log_bytes"]
        ratio = "-" if not one["base_bytes"] else f"{one['log_bytes'] / one['base_bytes']:.1%}"
        bar = f'<svg class="bar" viewBox="0 0 120 10"><rect width="{size / most * 120:.1f}" height="10"/></svg>'
        cells = (f"{one['groups']:,}", f"{one['groups_unmerged']:,}", bytes_text(one["base_bytes"]), bytes_text(one["log_bytes"]), ratio)
        rows.append(f"<tr><td>{text_of(one['partition']) or 'the whole table'}</td><td>{bar}</td>{_cells(cells)}</tr>")
    more = len(ordered) - PARTITIONS_MAX
    left = f'<p class="soft">{more:,} smaller ones more: <code>objcat partitions</code> shows all.</p>' if more > 0 else ""
    head = "<tr><th>partition<th><th>file groups<th>unmerged<th>base<th>log<th>log to base</tr>"
    return f"<h2>Partitions</h2><table>{head}{''.join(rows)}</table>{left}"


# ---- how the writers got on


def _conflicts(commits: Sequence[Commit]) -> str:
    counted = [commit for commit in commits if commit.attempts is not None]
    lost = [commit.slots_lost or 0 for commit in counted]
    tries = [commit.attempts or 0 for commit in counted]
    rows = [
        ("commits that lost a slot to another writer", f"{sum(slots > 0 for slots in lost):,}"),
        ("slots lost, together", f"{sum(lost):,}"),
        ("commits that had to write again", f"{sum(count > 1 for count in tries):,}"),
        ("most tries of one commit", f"{max(tries, default=0):,}"),
    ]
    return table_of("Conflicts", ("", ""), rows)


def _requests(commits: Sequence[Commit]) -> str:
    """Requests of commits until they were durable, by kind."""
    total: Counter[str] = Counter()
    counted = [commit.requests for commit in commits if commit.requests]
    for requests in counted:
        total.update(requests)
    rows = [(name, f"{count:,}", f"{count / len(counted):.1f}") for name, count in total.most_common()]
    return table_of(f"Requests of {len(counted):,} commits", ("request", "together", "a commit"), rows)


# ---- parts of a page


def table_of(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], note: str = "", *, of_words: bool = False) -> str:
    """A table. `of_words`: whether cells are read rather than compared."""
    kind = ' class="words"' if of_words else ""
    named = f"<tr>{''.join(f'<th>{text_of(name)}' for name in head)}</tr>" if any(head) else ""
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return f"<h2>{text_of(title)}</h2><table{kind}>{named}{body}</table>{note}"


def _cells(values: Iterable[str]) -> str:
    return "".join(f"<td>{text_of(value)}</td>" for value in values)


def _moment(when_ms: int | None) -> str:
    return "-" if when_ms is None else time_text(when_ms)


def _span(ms: int) -> str:
    """A time span for people."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= 2 * size:
            return f"{ms / size:,.0f} {unit}"
    return f"{ms:,} ms"
