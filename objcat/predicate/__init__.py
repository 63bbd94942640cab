"""Filters: from SQL text or Arrow expressions to what they are for rows, for files of which bounds are known, and for Spark.

`text` parses and checks what stands after WHERE (`chains` shortens what programs write), `translate` makes an Arrow expression of it,
`bounds` says which files it leaves out, and `spark_text` says it to Spark. `expression` is a filter that is given as an Arrow expression,
and `implied` what such a one says of bounds.
"""

from objcat.predicate.text import Predicate, parse_predicate

__all__ = ["Predicate", "parse_predicate"]
