"""Conformance suites of plug-ins, one module for each kind. A package that offers a plug-in runs them in its own tests."""
