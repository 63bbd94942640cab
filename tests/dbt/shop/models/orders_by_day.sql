{{ config(materialized='incremental', incremental_strategy='insert_overwrite', partition_by=['order_date'], key=['order_date', 'status']) }}

select order_date, status, count(*) as orders, sum(amount) as amount
from {{ ref('orders') }}
{% if is_incremental() %}
where order_date >= {{ dbt.dateadd('day', -90, "(select max(order_date) from " ~ this ~ ")") }}
{% endif %}
group by order_date, status
