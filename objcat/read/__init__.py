"""Reads: pure plans from a snapshot, run by either engine."""

from objcat.read.plan import ScanPlan, plan_scan

__all__ = ["ScanPlan", "plan_scan"]
