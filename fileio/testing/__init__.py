"""Tools for tests of a store, and of code that uses one.

- `fileio.testing.conformance`: the suite that every store must pass. A third party runs it against its own backend.
- `FaultyBackend`: a backend that fails on purpose, in the same way on every run.
- `FakeEnv`: an `Env` with virtual time.
"""

from __future__ import annotations

from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, RandomFaults, Rule, Rules

__all__ = ["Crash", "FakeEnv", "Fault", "FaultyBackend", "RandomFaults", "Rule", "Rules"]
