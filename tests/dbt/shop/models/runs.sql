{{ config(materialized='incremental', incremental_strategy='append', on_schema_change='append_new_columns') }}

select '{{ invocation_id }}' as run, count(*) as orders{% if var('with_amount', false) %}, sum(amount) as amount{% endif %}

from {{ ref('orders') }}
