"""The version of the adapter: that of objcat, which has the same."""

import importlib

version: str = importlib.import_module("objcat").__version__
