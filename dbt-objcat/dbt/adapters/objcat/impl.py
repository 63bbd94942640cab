"""The adapter: which relations a namespace has, and how models become tables. The SQL is that of dbt-spark, by its macros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dbt.adapters.base import BaseRelation, available
from dbt.adapters.base.impl import ConstraintSupport
from dbt.adapters.contracts.relation import RelationType
from dbt.adapters.objcat.connections import ObjcatConnectionManager
from dbt.adapters.protocol import AdapterConfig
from dbt.adapters.spark import SparkAdapter
from dbt_common.contracts.constraints import ConstraintType
from dbt_common.exceptions import DbtRuntimeError


@dataclass
class ObjcatConfig(AdapterConfig):
    """What a model may configure, beside dbt's own settings.

    Args:
        key: columns of the key; `unique_key` when it is left out.
        ordering: the ordering column.
        table_type: `merge_on_read` or `copy_on_write`.
        index: such as `bucket(8)`.
        partition_by: columns or transforms.
        tblproperties: other properties of the table.
    """

    key: list[str] | str | None = None
    ordering: str | None = None
    table_type: str | None = None
    index: str | None = None
    partition_by: list[str] | str | None = None
    tblproperties: dict[str, str] | None = None
    merge_update_columns: list[str] | str | None = None


class ObjcatAdapter(SparkAdapter):
    """Builds models as tables of a lake."""

    ConnectionManager = ObjcatConnectionManager
    AdapterSpecificConfigs = ObjcatConfig
    CONSTRAINT_SUPPORT: ClassVar[dict[ConstraintType, ConstraintSupport]] = {
        ConstraintType.check: ConstraintSupport.NOT_SUPPORTED,
        ConstraintType.not_null: ConstraintSupport.NOT_SUPPORTED,
        ConstraintType.unique: ConstraintSupport.NOT_SUPPORTED,
        ConstraintType.primary_key: ConstraintSupport.NOT_SUPPORTED,
        ConstraintType.foreign_key: ConstraintSupport.NOT_SUPPORTED,
    }

    def list_relations_without_caching(self, schema_relation: BaseRelation) -> list[BaseRelation]:
        """The tables of a namespace. None when there is no such namespace."""
        try:
            found = self.execute_macro("list_relations_show_tables_without_caching", kwargs={"schema_relation": schema_relation})
        except DbtRuntimeError as error:
            if "SCHEMA_NOT_FOUND" in str(error):
                return []
            raise
        return [
            self.Relation.create(schema=namespace, identifier=name, type=RelationType.Table)
            for namespace, name, is_temporary in found
            if not is_temporary
        ]

    @available
    def valid_incremental_strategies(self) -> list[str]:
        """The strategies of incremental models."""
        return ["append", "merge", "insert_overwrite"]

    @available
    def table_properties(self, config: Any) -> dict[str, str]:
        """The table properties that a model's settings ask for."""
        key = config.get("key") or config.get("unique_key")
        found = {
            "key": ", ".join([key] if isinstance(key, str) else key) if key else None,
            "ordering": config.get("ordering"),
            "objcat.table_type": config.get("table_type"),
            "index": config.get("index"),
        }
        return {name: value for name, value in found.items() if value} | dict(config.get("tblproperties") or {})
