"""``python -m asyncsim``: the command line."""

from asyncsim.cli import main

main()
