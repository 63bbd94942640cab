{{ config(materialized='incremental', unique_key='order_id', incremental_strategy='merge', index='bucket(2)') }}

{% set methods = ['credit_card', 'coupon', 'bank_transfer', 'gift_card'] %}

with paid as (
    select
        order_id,
        {% for method in methods %}
        sum(case when payment_method = '{{ method }}' then amount else 0 end) as {{ method }}_amount,
        {% endfor %}
        sum(amount) as amount
    from {{ ref('stg_payments') }}
    group by order_id
)

select orders.order_id, orders.customer_id, orders.order_date, orders.status, {% for method in methods %}paid.{{ method }}_amount, {% endfor %}paid.amount
from {{ ref('stg_orders') }} as orders
left join paid on paid.order_id = orders.order_id
{% if is_incremental() %}
where orders.order_id > (select max(order_id) from {{ this }}) or orders.status <> 'completed'
{% endif %}
