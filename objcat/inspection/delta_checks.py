"""Checks of what a Delta mirror holds: commits, checkpoints, the hint, and deletion vectors."""

from __future__ import annotations

from collections.abc import Iterable

from fileio.errors import NotFound
from objcat.inspection.findings import Finding
from objcat.inspection.mirror_slots import DAMAGE, MirrorUnderCheck
from objcat.mirror.delta.actions import (
    DeltaAdd,
    DeltaCommitInfo,
    DeltaVector,
    checkpoint_key,
    commit_key,
    decode_commit,
    hint_key,
    log_path_of,
)
from objcat.mirror.delta.checkpoints import DeltaCheckpoint, adds_of, read_hint
from objcat.mirror.delta.loading import list_log, load
from objcat.mirror.delta.stats import rows_of_stats
from objcat.mirror.delta.vectors import VECTORS_FOLDER, Vectors, vector_name


def check_delta(mirror: MirrorUnderCheck) -> list[Finding]:
    """What is wrong with the log of the readable slots of a mirror. Raises storage errors.

    Vectors are decoded, and not compared with the table.
    """
    check = _DeltaCheck(mirror)
    check.run()
    return check.findings


class _DeltaCheck:
    """Each object is read once."""

    def __init__(self, mirror: MirrorUnderCheck) -> None:
        self.findings: list[Finding] = []
        self._mirror = mirror
        self._folder = mirror.folder
        self._listing = list_log(mirror.folder)
        self._vectors = Vectors(mirror.folder)
        self._checked: set[DeltaVector] = set()

    def run(self) -> None:
        """Look at everything."""
        infos = [self._check_commit(version) for version in sorted(self._listing.commits) if version in self._mirror.txns]
        known = [info for info in infos if info is not None]
        self._look_for_versions(known[-1].since if known else 0)
        for version in sorted(self._listing.checkpoints):
            if version in self._mirror.txns:
                self._check_checkpoint(version)
        self._check_hint()
        if self._mirror.files is not None:
            self._check_newest()

    def _broken(self, key: str, says: str, error: BaseException | None = None) -> None:
        self.findings.append(self._mirror.broken(key, says, error))

    def _look_for_versions(self, since: int) -> None:
        """Versions that readers must apply, or may ask for. since: from this one on there is no gap."""
        newest = max(self._listing.commits, default=-1)
        for version in sorted(self._mirror.txns):
            if since <= version < newest and version not in self._listing.commits:
                says = f"is missing: the commit of slot {version}, which readers of later slots may need"
                self._broken(commit_key(self._folder, version), says)

    def _check_commit(self, version: int) -> DeltaCommitInfo | None:
        """A commit, and the vectors that it names. Returns its first action, None if it is damaged or gone."""
        key = commit_key(self._folder, version)
        try:
            lines = decode_commit(self._folder, version, self._folder.fileio.read(key))
        except NotFound:
            return None
        except DAMAGE as error:
            self._broken(key, f"is not the commit of slot {version}: {error}", error)
            return None
        info = next(line.commit_info for line in lines if line.commit_info is not None)
        self.findings += self._mirror.check_txn(key, version, info.txn_id)
        self._check_vectors(key, (line.add for line in lines if line.add is not None))
        return info

    def _check_checkpoint(self, version: int) -> None:
        key = checkpoint_key(self._folder, version)
        try:
            checkpoint = DeltaCheckpoint(self._folder, version, self._listing.checkpoints[version])
            checkpoint.settings()
            adds = [add for piece in checkpoint.pieces() for add in adds_of(piece)]
        except NotFound:
            return
        except DAMAGE as error:
            self._broken(key, f"cannot be read: {error}", error)
            return
        self._check_vectors(key, adds)

    def _check_vectors(self, named_by: str, adds: Iterable[DeltaAdd]) -> None:
        for add in adds:
            vector = add.deletion_vector
            if vector is None or vector in self._checked:
                continue
            self._checked.add(vector)
            try:
                self._vectors.read([vector])
            except DAMAGE as error:
                self._broken(self._key_of(vector), f"cannot be used, and {named_by} names it: {error}")

    def _key_of(self, vector: DeltaVector) -> str:
        try:
            return self._folder.folder + vector_name(vector)
        except DAMAGE:
            return f"{self._folder.folder}{VECTORS_FOLDER}/"

    def _check_hint(self) -> None:
        hint, _ = read_hint(self._folder)
        if hint is not None and hint.version not in self._listing.checkpoints:
            self._broken(hint_key(self._folder), f"names the checkpoint of version {hint.version}, which is missing")

    def _check_newest(self) -> None:
        """Counts and sizes of data files, which engines plan by and some answer from."""
        state = load(self._folder)
        if state is None or state.slot != self._mirror.newest:
            return
        said_by = commit_key(self._folder, state.slot)
        for add in state.files():
            path, rows = log_path_of(self._folder, add.path), rows_of_stats(add.stats)
            self.findings += self._mirror.check_file(path, rows=rows, size=add.size, said_by=said_by)
