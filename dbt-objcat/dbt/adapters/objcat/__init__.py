"""A dbt adapter that builds models as objcat tables, on Spark in the process of dbt."""

from dbt.adapters.base import AdapterPlugin
from dbt.adapters.objcat.connections import ObjcatCredentials
from dbt.adapters.objcat.impl import ObjcatAdapter
from dbt.include import objcat

Plugin = AdapterPlugin(
    adapter=ObjcatAdapter,
    credentials=ObjcatCredentials,
    include_path=objcat.PACKAGE_PATH,
    dependencies=["spark"],
)
"""What dbt loads for `type: objcat`."""
