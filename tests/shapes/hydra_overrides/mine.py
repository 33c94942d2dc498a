"""An objective with settings as `name=value`, read from a file of defaults and the command line."""

import sys
from types import SimpleNamespace

DEFAULTS = "x: 1.0\ny: 1.0\noffset: 0.5"


def settings(words):
    found = dict(line.split(": ") for line in DEFAULTS.splitlines())
    for word in words:
        name, _, value = word.partition("=")
        if name not in found:
            sys.exit(f"Could not override '{name}'. Known: {', '.join(found)}")
        found[name] = value
    return SimpleNamespace(**{name: float(value) for name, value in found.items()})


def objective(cfg):
    return (cfg.x - 2) ** 2 + (cfg.y + 1) ** 2 + cfg.offset


if __name__ == "__main__":
    print("loss", objective(settings(sys.argv[1:])))
