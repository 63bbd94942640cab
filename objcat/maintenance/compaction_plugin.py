"""Compaction strategies of other packages: what they get, what they answer, and how they are found.

An entry point of the group `objcat.compaction_strategies` loads to a callable that takes the options of the table and returns a
`CompactionPlugin`. A class whose constructor takes them is one. `objcat.testing.compaction` is the conformance suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from objcat.common.plugins import load_plugin
from objcat.common.validation import shown
from objcat.errors import ObjcatError, PluginFailed
from objcat.metadata.properties import COMPACT_STRATEGY
from objcat.timeline.entry import FileGroupId

GROUP = "objcat.compaction_strategies"
_OPTION = f"{COMPACT_STRATEGY}."


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCandidate:
    """A file group with something to merge, as a compaction strategy of another package sees it.

    Args:
        file_group: which one, with its partition.
        log_bytes: bytes of log rows that wait to be merged.
        log_count: runs of log rows that wait; one run is what one log file holds for the file group.
        base_bytes: bytes of the base file; 0 when there is none.
        io_bytes: about how many bytes a compaction of the file group reads and writes.
        waiting_s: seconds between the commit of the oldest log rows that wait and the newest commit of the table's log.
    """

    file_group: FileGroupId
    log_bytes: int
    log_count: int
    base_bytes: int
    io_bytes: int
    waiting_s: float


class CompactionPlugin(Protocol):
    """A compaction strategy of another package."""

    def choose(self, candidates: Sequence[CompactionCandidate]) -> Iterable[FileGroupId]:
        """Choose file groups to compact, the most urgent first. A limit of bytes then takes as many as fit, in this order.

        It must be a pure function of the candidates and the options. It is called for each plan, also by writers that look whether a
        compaction is due. A plan is made again after a conflict. What it leaves stays as it is, and is a candidate again.

        Args:
            candidates: file groups that meet the conditions of the caller, sorted by file group.

        Returns:
            File groups of the candidates, each at most once; none when nothing is to be compacted.
        """


def choose_by_plugin(name: str, properties: Mapping[str, str], candidates: Sequence[CompactionCandidate]) -> list[FileGroupId]:
    """What the strategy of an installed package chooses, in its order.

    Args:
        name: of its entry point.
        properties: of the table, which has the options.
        candidates: as of `CompactionPlugin.choose`.

    Raises:
        PluginMissing: it is not installed.
        PluginFailed: it raised an error, or chose what it must not.
    """
    make = load_plugin(GROUP, name, what="compaction strategy")
    options = {key.removeprefix(_OPTION): value for key, value in properties.items() if key.startswith(_OPTION)}
    try:
        chosen = list(make(options).choose(tuple(candidates)))
    except ObjcatError:
        raise
    except Exception as error:
        raise PluginFailed(
            f"The compaction strategy {name!r} failed with {type(error).__name__}: {error}. Nothing was compacted. Correct it or its "
            f"options, or unset the property {COMPACT_STRATEGY!r}."
        ) from error
    left = {candidate.file_group for candidate in candidates}
    for file_group in chosen:
        if not isinstance(file_group, FileGroupId) or file_group not in left:
            raise PluginFailed(
                f"The compaction strategy {name!r} chose {shown(file_group)}, which is no candidate or was chosen before. Nothing was "
                "compacted. Correct it: it must choose file groups of its candidates, each at most once."
            )
        left.remove(file_group)
    return chosen
