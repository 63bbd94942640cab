"""What lies in the objects of a table: base files and log objects, merging, and hashing of keys. Pure: Arrow in, Arrow out."""
