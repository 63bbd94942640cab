"""Benchmarks: objcat next to the tools that its users would use instead, always both in one run, in alternating pairs."""
