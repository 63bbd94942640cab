"""Bugs of mirrors, each a plausible mistake of whoever changes them next."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from fileio.contract import Overwrite
from tests.mutations.bugs import bug

pointers: Any = import_module("objcat.mirror.iceberg.pointers")
uploads: Any = import_module("objcat.mirror.iceberg.objects")
delta: Any = import_module("objcat.mirror.delta.mirror")


@bug("an Iceberg metadata file that is put whatever is there", "P13", "mirror, mirror: Iceberg 2")
def _put_over_metadata(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pointers, "Create", Overwrite)


@bug("a Delta version that is put whatever is there", "P13", "mirror, mirror: Delta")
def _put_over_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delta, "Create", Overwrite)


@bug("an Iceberg mirror that deletes what it put although it does not know the outcome", "P13", "mirror alone, without retries: Iceberg 2")
def _discarded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(uploads.Uploads, "keep", lambda self: None)
