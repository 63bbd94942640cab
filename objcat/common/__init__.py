"""Helpers that know no table and no log: argument checks, progress, bounded caches, full memory."""
