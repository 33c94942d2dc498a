"""What every room may use: errors, text, files, randomness; nothing of ours below it."""

import sys

if sys.flags.optimize > 1:
    from ablate.base.documented import keep_docstrings

    keep_docstrings()
