"""A read-only Iceberg REST catalog over the mirrors of a lake's tables. Begin with `app`, which makes the ASGI app; `server` runs it.

A server holds no state that another lacks. The bucket has the names of the lake (`served_names`) and the metadata of each mirror
(`mirrored_metadata`), and a server reads both with small caches that expire. So any number of them may run behind a balancer.
"""
