"""Derived tables: the result of a query over other tables of the lake, kept up to date by their changes."""
