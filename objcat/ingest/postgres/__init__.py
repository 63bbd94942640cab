"""PostgreSQL by logical replication (pgoutput). Begin with `source.py`. Only this package imports psycopg and psycopg2."""
