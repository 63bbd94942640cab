{% macro objcat__get_binding_char() %}
  {{ return('?') }}
{% endmacro %}


{% macro objcat__file_format_clause() %}
  using objcat
{% endmacro %}


{% macro objcat__location_clause() %}
  {%- if config.get('location_root') is not none -%}
    {{ exceptions.raise_compiler_error("location_root has no meaning for a lake: its tables are below its URL. Leave it out.") }}
  {%- endif -%}
{% endmacro %}


{% macro objcat__options_clause() %}
  {%- if config.get('options') is not none -%}
    {{ exceptions.raise_compiler_error("options have no meaning for a lake. Give tblproperties.") }}
  {%- endif -%}
{% endmacro %}


{% macro objcat__tblproperties_clause() %}
  {%- set properties = adapter.table_properties(config) -%}
  {%- if properties %}
  tblproperties (
    {%- for name in properties -%}
      '{{ name }}' = '{{ properties[name] | string | replace("'", "\\'") }}'{{ ', ' if not loop.last }}
    {%- endfor -%}
  )
  {%- endif -%}
{% endmacro %}


{% macro objcat__create_table_as(temporary, relation, compiled_code, language='sql') %}
  {%- if language != 'sql' -%}
    {{ exceptions.raise_compiler_error("Models in Python cannot be built on a lake yet. Write the model in SQL.") }}
  {%- endif -%}
  {%- if temporary -%}
    {{ create_temporary_view(relation, compiled_code) }}
  {%- else -%}
    {%- if config.get('contract').enforced -%}
      {{ get_assert_columns_equivalent(compiled_code) }}
      {%- set compiled_code = get_select_subquery(compiled_code) -%}
    {%- endif -%}
    create or replace table {{ relation }}
    {{ file_format_clause() }}
    {{ options_clause() }}
    {{ partition_cols(label="partitioned by") }}
    {{ clustered_cols(label="clustered by") }}
    {{ location_clause() }}
    {{ comment_clause() }}
    {{ tblproperties_clause() }}
    as
    {{ compiled_code }}
  {%- endif -%}
{% endmacro %}


{% macro objcat__persist_constraints(relation, model) %}
{% endmacro %}


{% macro objcat__alter_column_comment(relation, column_dict) %}
  {% do exceptions.warn("A lake keeps no comments of columns: persist_docs of " ~ relation ~ " takes the comment of the table only.") %}
{% endmacro %}


{% macro objcat__alter_relation_add_remove_columns(relation, add_columns, remove_columns) %}
  {%- if add_columns -%}
    {%- call statement('add_columns') -%}
      alter table {{ relation }} add columns (
        {%- for column in add_columns -%}
          {{ column.quoted }} {{ column.data_type }}{{ ', ' if not loop.last }}
        {%- endfor -%}
      )
    {%- endcall -%}
  {%- endif -%}
  {%- if remove_columns -%}
    {%- call statement('remove_columns') -%}
      alter table {{ relation }} drop columns (
        {%- for column in remove_columns -%}
          {{ column.quoted }}{{ ', ' if not loop.last }}
        {%- endfor -%}
      )
    {%- endcall -%}
  {%- endif -%}
{% endmacro %}


{% macro objcat__reset_csv_table(model, full_refresh, old_relation, agate_table) %}
  {{ return(default__reset_csv_table(model, full_refresh, old_relation, agate_table)) }}
{% endmacro %}


{% macro objcat__make_temp_relation(base_relation, suffix) %}
  {{ return(spark__make_temp_relation(base_relation, suffix)) }}
{% endmacro %}


{% macro objcat__get_or_create_relation(database, schema, identifier, type) %}
  {{ return(default__get_or_create_relation(none, schema, identifier, type)) }}
{% endmacro %}
