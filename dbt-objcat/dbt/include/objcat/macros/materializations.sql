{% materialization view, adapter='objcat' %}
  {{ exceptions.raise_compiler_error(
    "A lake has no views. Set materialized: table, incremental or ephemeral for " ~ model.name ~
    ", or for all models by +materialized in dbt_project.yml.") }}
{% endmaterialization %}


{#- A table whose columns stay is replaced in one commit and keeps its history; with others it is dropped and created. -#}
{% macro drop_unless_replaceable(existing, compiled_code) %}
  {%- if existing is not none -%}
    {%- set now = [] -%}
    {%- for column in adapter.get_columns_in_relation(existing) -%}
      {%- do now.append([column.name, column.dtype]) -%}
    {%- endfor -%}
    {%- set wanted = [] -%}
    {%- for column in get_column_schema_from_query(compiled_code) -%}
      {%- do wanted.append([column.name, column.dtype]) -%}
    {%- endfor -%}
    {%- if now != wanted or should_full_refresh() -%}
      {%- do adapter.drop_relation(existing) -%}
    {%- endif -%}
  {%- endif -%}
{% endmacro %}


{% materialization table, adapter='objcat', supported_languages=['sql', 'python'] %}
  {%- set existing = adapter.get_relation(database=database, schema=schema, identifier=model['alias']) -%}
  {%- set target = api.Relation.create(identifier=model['alias'], schema=schema, database=database, type='table') -%}
  {{ run_hooks(pre_hooks) }}
  {%- do drop_unless_replaceable(existing, compiled_code) -%}
  {%- call statement('main') -%}
    {{ create_table_as(False, target, compiled_code, model['language']) }}
  {%- endcall -%}
  {%- do persist_docs(target, model) -%}
  {{ run_hooks(post_hooks) }}
  {{ return({'relations': [target]}) }}
{% endmaterialization %}


{% macro objcat_insert_sql(target, source, overwrite) %}
  {%- set columns = adapter.get_columns_in_relation(target) | map(attribute='quoted') | join(', ') -%}
  insert {{ 'overwrite' if overwrite else 'into' }} {{ target }} select {{ columns }} from {{ source }}
{% endmacro %}


{% materialization incremental, adapter='objcat', supported_languages=['sql', 'python'] %}
  {%- set unique_key = config.get('unique_key') -%}
  {%- set strategy = config.get('incremental_strategy') or ('merge' if unique_key else 'append') -%}
  {%- if strategy not in adapter.valid_incremental_strategies() -%}
    {{ exceptions.raise_compiler_error(
      "incremental_strategy: " ~ strategy ~ " is unknown. Use one of " ~ adapter.valid_incremental_strategies() | join(', ') ~ ".") }}
  {%- endif -%}
  {%- if strategy == 'merge' and not unique_key -%}
    {{ exceptions.raise_compiler_error("incremental_strategy: merge needs unique_key: the columns by which rows are matched.") }}
  {%- endif -%}
  {%- set existing = load_relation(this) -%}
  {%- set on_schema_change = incremental_validate_on_schema_change(config.get('on_schema_change'), default='ignore') -%}
  {%- set predicates = config.get('incremental_predicates') or config.get('predicates') -%}
  {{ run_hooks(pre_hooks) }}
  {%- if existing is none or should_full_refresh() -%}
    {%- do drop_unless_replaceable(existing, compiled_code) -%}
    {%- call statement('main') -%}
      {{ create_table_as(False, this, compiled_code, model['language']) }}
    {%- endcall -%}
  {%- else -%}
    {%- set source = make_temp_relation(this) -%}
    {%- call statement('create_tmp_relation') -%}
      {{ create_table_as(True, source, compiled_code, model['language']) }}
    {%- endcall -%}
    {%- do process_schema_changes(on_schema_change, source, existing) -%}
    {%- call statement('main') -%}
      {%- if strategy == 'merge' -%}
        {{ get_merge_sql(this, source, unique_key, none, predicates) }}
      {%- else -%}
        {{ objcat_insert_sql(this, source, strategy == 'insert_overwrite') }}
      {%- endif -%}
    {%- endcall -%}
  {%- endif -%}
  {%- do persist_docs(this, model) -%}
  {{ run_hooks(post_hooks) }}
  {{ return({'relations': [this]}) }}
{% endmaterialization %}


{#- The one of dbt-spark knows formats by name. -#}
{% materialization snapshot, adapter='objcat' %}
  {{ return(dbt.materialization_snapshot_default()) }}
{% endmaterialization %}


{% macro objcat__snapshot_merge_sql(target, source, insert_cols) %}
  {{ return(spark__snapshot_merge_sql(target, source, insert_cols)) }}
{% endmacro %}


{% macro objcat__post_snapshot(staging_relation) %}
  {%- call statement('drop_staging') -%}
    drop view if exists {{ staging_relation }}
  {%- endcall -%}
{% endmacro %}
