"""The conformance suite of `fileio`. Import everything, and define a fixture `subject` (see `fileio.testing.subject`).

Every test runs against every subject. If a store does not declare a capability, the test demands that the call raises Unsupported. Any
other difference from the contract is a `Deviation` of the subject, listed with its reason. No test is skipped.
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
