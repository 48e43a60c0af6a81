"""``python -m metavrf``."""

from metavrf.cli import main

main()
