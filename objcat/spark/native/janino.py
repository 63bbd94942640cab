"""Compiles our Java source with the Janino that Spark ships, so there is no JAR."""

from __future__ import annotations

import threading
from importlib import resources
from typing import Any

from pyspark.sql import SparkSession

from objcat.spark.versions import java_source

_lock = threading.Lock()
_KEPT = "_objcat_compiled"


def compiled(spark: SparkSession, source: str, made: str, *, target: int | None = None) -> Any:
    """An object of a class without arguments, in the JVM of a session. It is made at the first call, and cached with its gateway.

    Args:
        source: a file of this package, without `.java`.
        made: a class nested in the one of that name.
        target: Java version for the compiler; 8 where Spark's interfaces have static methods.
    """
    gateway = spark.sparkContext._gateway
    with _lock:
        kept: dict[str, Any] = vars(gateway).setdefault(_KEPT, {})
        if source not in kept:
            jvm: Any = spark._jvm
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
            if target is not None:
                compiler.setTargetVersion(target)
            text = resources.files("objcat.spark.native").joinpath(f"{source}.java").read_text(encoding="utf-8")
            compiler.cook(java_source(source, text))
            kept[source] = compiler.getClassLoader().loadClass(f"{source}${made}").getConstructors()[0].newInstance(None)
        return kept[source]
