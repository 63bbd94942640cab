"""The conformance suite on every store of ours and on every server that tests start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fileio.memory import MemoryBackend, drop_memory
from fileio.registry import describe_store, open_store
from fileio.store import FileIO
from fileio.testing.conformance import *  # noqa: F403
from fileio.testing.conformance import Subject, described
from fileio.wrap import Prefixed

_numbers = itertools.count()


def memory_subject(_: pytest.FixtureRequest) -> Subject:
    name = f"conformance-{next(_numbers)}"

    def missing() -> FileIO:
        store = open_store("memory://dropped")
        drop_memory("dropped")
        return store

    def uploads() -> list[str]:
        backend = open_store(f"memory://{name}")._backend._inner  # type: ignore[attr-defined]
        assert isinstance(backend, MemoryBackend)
        return backend.uploads_in_progress

    return described("memory", describe_store(f"memory://{name}"), missing=missing, uploads=uploads)


def memory_etags_subject(_: pytest.FixtureRequest) -> Subject:
    """Versions are hashes of the bytes, as on S3; made by hand, so that nothing describes it."""
    backend = MemoryBackend("etags", content_versions=True)
    dropped = MemoryBackend("dropped")
    dropped.drop()
    return Subject(
        name="memory-etags",
        open=lambda prefix: FileIO(Prefixed(backend, prefix)),
        missing=lambda: FileIO(dropped),
        uploads=lambda: backend.uploads_in_progress,
    )


def file_subject(request: pytest.FixtureRequest) -> Subject:
    """A directory is made by the first write, so none is ever missing."""
    root: Path = request.getfixturevalue("tmp_path")
    return described("file", describe_store(root / "store", {"fsync": "false"}))


SUBJECTS: Mapping[str, Callable[[pytest.FixtureRequest], Subject]] = {
    "memory": memory_subject,
    "memory-etags": memory_etags_subject,
    "file": file_subject,
}


@pytest.fixture(params=list(SUBJECTS))
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param](request)
