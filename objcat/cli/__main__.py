"""`python -m objcat.cli`: the command line without its script."""

from objcat.cli import main

main()
