"""Databases and logs into the lake. Begin with `model.py`: what a source hands over."""
