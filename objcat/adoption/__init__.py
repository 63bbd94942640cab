"""Adopts tables of other formats: their data files become base files of an objcat table, where they are.

Begin with `adopt.adopt_files`. `iceberg.open_iceberg` and `delta.open_delta` say what a foreign table is, as a `foreign.ForeignTable`.
Metadata of the other formats is read by their own libraries, pyiceberg and deltalake. Nothing of a foreign table is changed.
"""
