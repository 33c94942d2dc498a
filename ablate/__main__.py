"""`python -m ablate` is the command line, without the current folder that `-m` puts first on `sys.path`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # before anything is imported: a file there could take the place of any module

from ablate.cli.process import process

process()
