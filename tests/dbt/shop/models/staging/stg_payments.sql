select id as payment_id, order_id, payment_method, cast(amount / 100 as decimal(12, 2)) as amount from {{ ref('raw_payments') }}
