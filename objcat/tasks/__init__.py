"""Tasks on data files: each one writes, merges or reads file groups through a store. Entry: `model`."""
