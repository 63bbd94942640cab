"""Helpers that know no table and no log: checks of arguments, progress, bounded caches, errors of a full memory."""
