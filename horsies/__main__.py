"""`python -m horsies` is the `horsies` command."""

from horsies.cli import main

main()
