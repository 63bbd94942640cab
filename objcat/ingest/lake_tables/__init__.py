"""Tables of another objcat lake as a source."""
