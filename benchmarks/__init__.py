"""Benchmarks: this project beside what its users would use instead, always both in one run, in pairs of alternating order."""
