"""Reads: pure plans from a snapshot, run by either engine."""

from objcat.read.plan import ScanPlan, narrow_plan, plan_scan

__all__ = ["ScanPlan", "narrow_plan", "plan_scan"]
