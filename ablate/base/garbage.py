"""How often garbage is collected while libraries are imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

USUAL = gc.get_threshold()
# With 700 new objects `ablate status` collects 400 times, a third of its time; with 200,000 `ablate plan` twice, 0.2 s.
RARE = (2_000_000, *USUAL[1:])


def collect_rarely() -> None:
    """Collect garbage rarely: the objects of imported libraries live as long as the process."""
    gc.set_threshold(*RARE)


def collect_as_usual() -> None:
    """Take back `collect_rarely`, if it was called: trials may leave tensors in cycles.

    What there is until then is never looked at again, nor freed if it is garbage in a cycle; one look at a million
    objects takes a quarter of a second.
    """
    if gc.get_threshold() == RARE:
        gc.freeze()
        gc.set_threshold(*USUAL)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Collect garbage rarely inside the block; a choice that the block makes itself stays."""
    former = gc.get_threshold()
    collect_rarely()
    try:
        yield
    finally:
        if gc.get_threshold() == RARE:
            gc.set_threshold(*former)
