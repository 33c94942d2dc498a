"""`python -m ablate` is the command line."""

from __future__ import annotations

from ablate.cli import main

main()
