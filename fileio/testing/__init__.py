"""What tests of a store, and of code on top of a store, are made of.

`conformance`: the suite that every store must pass. `faults`: a backend that fails on purpose. `env`: an Env with virtual time.
"""

from __future__ import annotations

from fileio.testing.env import FakeEnv
from fileio.testing.faults import Crash, Fault, FaultyBackend, RandomFaults, Rule, Rules

__all__ = ["Crash", "FakeEnv", "Fault", "FaultyBackend", "RandomFaults", "Rule", "Rules"]
