"""Metrics of a table, as text that Prometheus scrapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from objcat.common.validation import whole_number
from objcat.inspection.snapshot_stats import TableStats, stats_of
from objcat.inspection.verify_files import verify_some
from objcat.metadata.manifest import Manifests
from objcat.metadata.snapshot import snapshot_of
from objcat.metadata.table_state import Tables
from objcat.mirror.mirror import TableMirrors
from objcat.timeline.entry import Action, Entry, Txn
from objcat.timeline.intents import REQUESTED_SUFFIX
from objcat.timeline.log_view import LogView, Timeline
from objcat.timeline.reopening import reopening

QUANTILES = (0.5, 0.95, 1.0)

_HELP = {
    "objcat_slot": "The newest slot of the log.",
    "objcat_commit_timestamp_seconds": "Commit time of the newest slot.",
    "objcat_data_lag_seconds": "Age of the newest commit that changed rows, among the recent ones.",
    "objcat_rows": "Rows, at most: log rows may replace others.",
    "objcat_base_bytes": "Bytes of base files.",
    "objcat_log_bytes": "Bytes of log rows that wait to be merged.",
    "objcat_log_to_base_ratio": "Bytes of log rows for one byte of base files.",
    "objcat_file_groups": "File groups.",
    "objcat_file_groups_unmerged": "File groups that a compaction would rewrite.",
    "objcat_oldest_intent_seconds": "How long ago the operation under way that has been silent longest gave a sign of life.",
    "objcat_mirror_lag_slots": "Slots of the log that a mirror does not show yet, up to the newest one of the table.",
    "objcat_derived_lag_slots": "Slots of a source with changes that a derived table does not show yet.",
    "objcat_derived_lag_seconds": "From the commit of a source that a derived table shows to the newest change of it.",
    "objcat_scheduled_plans": "Plans that wait for an executor.",
    "objcat_files_without_digest": "Live data files whose entry has no digest, which therefore cannot be verified.",
    "objcat_verified_files": "Live data files that were read whole just now, drawn at random, to compare their digests.",
    "objcat_verified_bytes": "Bytes of these files.",
    "objcat_damaged_files": "Of these files, those that are not what was committed.",
    "objcat_recent_commits": "Recent slots, by action.",
    "objcat_recent_commit_seconds": "From the beginning of an operation to its commit, by the writer's and the store's clock.",
    "objcat_recent_conflicts": "Attempts of recent commits that had to be done again.",
    "objcat_recent_slots_lost": "Slots that recent commits lost to others.",
    "objcat_recent_requests": "Requests that recent commits sent, by kind.",
}
"""Every metric. All are gauges: the log holds the counts, and a reader may begin anywhere in it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric."""

    metric: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def samples_of(timeline: Timeline[Tables], table: str, *, name: str, recent: int = 100, verify_bytes_max: int = 0) -> list[Sample]:
    """The metrics of a table. Reads manifests and the recent entries, and lists intents.

    Args:
        name: of the table, for the label.
        recent: how many of the newest slots of the log are "recent"; each is read.
        verify_bytes_max: about how many bytes of data files to read to verify them, see `verify_some`.

    Raises:
        InvalidInput, TableClosed, storage errors: see `objcat.errors`.
    """
    whole_number(recent, what="recent", most=10_000)
    whole_number(verify_bytes_max, what="verify_bytes_max", least=0)
    env = timeline.fileio.env

    def look() -> tuple[LogView[Tables], TableStats]:
        view = timeline.open()
        return view, stats_of(snapshot_of(view, table, where=timeline.fileio.url), Manifests(timeline.fileio))

    view, stats = reopening(timeline, look)
    now_ms = env.now_ms()
    intents = [meta for page in timeline.fileio.list("intents/") for meta in page.objects]
    under_way = [now_ms - meta.modified_ms for meta in intents if not meta.key.endswith(REQUESTED_SUFFIX)]
    values = {
        "objcat_slot": view.slot,
        "objcat_commit_timestamp_seconds": view.log.committed_at_ms / 1000,
        "objcat_rows": stats.rows,
        "objcat_base_bytes": stats.base_bytes,
        "objcat_log_bytes": stats.log_bytes,
        "objcat_log_to_base_ratio": stats.log_bytes / max(1, stats.base_bytes),
        "objcat_file_groups": stats.groups,
        "objcat_file_groups_unmerged": stats.groups_unmerged,
        "objcat_oldest_intent_seconds": max([0, *under_way]) / 1000,
        "objcat_scheduled_plans": len(intents) - len(under_way),
    }
    verified = verify_some(timeline, table, bytes_max=verify_bytes_max, view=view)
    values["objcat_files_without_digest"] = verified.unknown
    if verify_bytes_max:
        values |= {
            "objcat_verified_files": verified.files,
            "objcat_verified_bytes": verified.bytes,
            "objcat_damaged_files": len(verified.damaged),
        }
    found = [Sample(metric, value) for metric, value in values.items()]
    for form, lag in TableMirrors(timeline, table, name, Manifests(timeline.fileio)).lags(view).items():
        found.append(Sample("objcat_mirror_lag_slots", lag, {"format": form}))
    entries = timeline.log.read_after(max(-1, view.slot - recent), until=view.slot)
    found += _of_entries([entry for entry in entries if table in entry.footprint], table, now_ms)
    return [Sample(sample.metric, sample.value, {"table": name, **sample.labels}) for sample in found]


def prometheus_text(samples: Iterable[Sample]) -> str:
    """Samples in the text format of Prometheus, each metric with its help and type."""
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric, values in by_metric.items():
        lines += [f"# HELP {metric} {_HELP[metric]}", f"# TYPE {metric} gauge"]
        for sample in values:
            labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in sample.labels.items())
            number = f"{sample.value:.6f}".rstrip("0").rstrip(".")
            lines.append(f"{metric}{{{labels}}} {number}" if labels else f"{metric} {number}")
    return "".join(f"{line}\n" for line in lines)


def _of_entries(entries: Sequence[Entry], table: str, now_ms: int) -> list[Sample]:
    found = [
        Sample("objcat_recent_commits", count, {"action": action.value})
        for action, count in sorted(Counter(entry.action for entry in entries).items())
    ]
    changed = [entry.committed_at_ms for entry in entries if changes_rows(entry, table)]
    if changed:
        found.append(Sample("objcat_data_lag_seconds", max(0, now_ms - changed[-1]) / 1000))
    took = sorted(max(0, entry.committed_at_ms - began_ms(entry.txn)) / 1000 for entry in entries)
    if took:
        quantiles = {str(quantile): took[min(len(took) - 1, int(quantile * len(took)))] for quantile in QUANTILES}
        found += [Sample("objcat_recent_commit_seconds", value, {"quantile": quantile}) for quantile, value in quantiles.items()]
    summaries = [entry.summary for entry in entries if entry.summary is not None]
    found.append(Sample("objcat_recent_conflicts", sum(summary.attempts - 1 for summary in summaries)))
    found.append(Sample("objcat_recent_slots_lost", sum(summary.slots_lost for summary in summaries)))
    requests: Counter[str] = Counter()
    for summary in summaries:
        requests.update(summary.requests)
    return found + [Sample("objcat_recent_requests", count, {"kind": kind}) for kind, count in sorted(requests.items())]


def changes_rows(entry: Entry, table: str) -> bool:
    """Whether an entry whose footprint has a table may have changed rows of it."""
    touched = entry.footprint[table]
    wrote = touched.creates or touched.appends or touched.replaces or touched.retires or touched.restores is not None
    return bool(wrote) and entry.action is not Action.COMPACTION


def began_ms(txn: Txn) -> int:
    """When a transaction was requested, by the clock of its writer: ms since 1970 UTC."""
    return int(datetime.strptime(f"{txn[:18]}000", "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC).timestamp() * 1000)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
