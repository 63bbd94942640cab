"""The conformance suite of `fileio`: import everything, and define a fixture `subject` (see `fileio.testing.subject`).

Every test is run against every subject. Where a store declares that it lacks a capability, the test demands that the call is refused as
Unsupported; what a store does otherwise than the contract says is a `Deviation` of its subject, listed by name with its reason. Nothing is
skipped.
"""

# ruff: noqa: E402, F403
from __future__ import annotations

import pytest

_MODULES = ("subject", "suite_objects", "suite_listing", "suite_uploads", "suite_races")
pytest.register_assert_rewrite(*(f"fileio.testing.{name}" for name in _MODULES))

from fileio.testing.subject import *
from fileio.testing.suite_listing import *
from fileio.testing.suite_objects import *
from fileio.testing.suite_races import *
from fileio.testing.suite_uploads import *
