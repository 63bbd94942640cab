"""MariaDB and MySQL as sources, by their binlog. Begin with `source.py`."""
