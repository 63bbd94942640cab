"""What services that read files in place share: how many files one commit takes, and files that change while they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fileio.store import FileIO
from objcat.common.progress import shown_progress
from objcat.errors import SourceFileChanged
from objcat.metadata.files import BaseFile, FileGroup
from objcat.tasks.parallel import run_all
from objcat.timeline.entry import FileGroupId


def first_groups(groups: Sequence[FileGroup], *, files_max: int, bytes_max: int) -> Sequence[FileGroup]:
    """The first file groups up to both limits. The first one in any case."""
    size = 0
    for count, group in enumerate(groups):
        size += 0 if group.base is None else group.base.bytes
        if count and (count >= files_max or size > bytes_max):
            return groups[:count]
    return groups


def bases_of_unchanged(
    fileio: FileIO, groups: Sequence[FileGroup], make: Callable[[BaseFile], BaseFile], *, what: str, passed: set[FileGroupId]
) -> list[BaseFile]:
    """What `make` returns for the base file of each group, several at once.

    Args:
        what: is shown as progress.
        passed: takes the file groups whose source changed or is gone: `make` raised SourceFileChanged.

    Raises storage errors.
    """
    with shown_progress(fileio.env, what, len(groups), unit="files") as advance:

        def made(group: FileGroup) -> BaseFile | None:
            assert group.base is not None
            try:
                return make(group.base)
            except SourceFileChanged:
                passed.add(group.group_id)
                return None
            finally:
                advance(1)

        found = run_all(fileio.env, made, groups, at_once=fileio.env.parallelism)
    return [base for base in found if base is not None]
