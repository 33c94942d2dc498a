"""How often a command collects garbage."""

import gc

USUAL = gc.get_threshold()
RARE = (200_000, *USUAL[1:])  # objects; with 700, `ablate status` collects 400 times, a third of its time


def collect_rarely() -> None:
    """Collect garbage rarely: the objects of imported libraries live as long as the command."""
    gc.set_threshold(*RARE)


def collect_as_usual() -> None:
    """Collect garbage as often as Python does; a driver calls this, because trials may leave tensors in cycles."""
    gc.set_threshold(*USUAL)
