"""Print the rooms of ablate/, their floors, and the import arrows between them: python tests/import_graph.py.

A room is a module or package directly in ablate/; `__main__`, which starts the command, is none. An arrow is a pair of
rooms of which one imports the other, once however many modules do. A room without arrows is on floor 1; every other one
is one floor above the highest that it imports.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from graphlib import TopologicalSorter

import grimp


@dataclass(frozen=True, kw_only=True)
class Rooms:
    """Every room with the rooms that it imports."""

    imports: dict[str, frozenset[str]]

    @property
    def arrows(self) -> int:
        """The number of pairs of which one imports the other."""
        return sum(map(len, self.imports.values()))

    def floors(self) -> list[list[str]]:
        """Return the rooms of each floor, the lowest first; raise graphlib.CycleError where there is a cycle."""
        floor: dict[str, int] = {}
        for room in TopologicalSorter(self.imports).static_order():
            floor[room] = 1 + max((floor[below] for below in self.imports[room]), default=-1)
        found: list[list[str]] = [[] for _ in range(max(floor.values(), default=-1) + 1)]
        for room in sorted(floor):
            found[floor[room]].append(room)
        return found


def read_rooms(package: str = "ablate") -> Rooms:
    """Return the rooms of an importable package; imports for type checking count."""
    graph = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=False)
    imports: dict[str, set[str]] = {}
    for module in graph.modules - {package, f"{package}.__main__"}:
        room = module.split(".")[1]
        found = {name.split(".")[1] for name in graph.find_modules_directly_imported_by(module) if name != package}
        imports.setdefault(room, set()).update(found - {room})
    return Rooms(imports={room: frozenset(found) for room, found in imports.items()})


def render(rooms: Rooms) -> str:
    """Return one line for the counts and one for each floor, the highest first."""
    floors = rooms.floors()
    head = f"{len(rooms.imports)} rooms, {len(floors)} floors, {rooms.arrows} arrows"
    return "\n".join([head, *(f"{n:2d} {' '.join(floors[n - 1])}" for n in range(len(floors), 0, -1))])


if __name__ == "__main__":
    sys.stdout.write(render(read_rooms()) + "\n")
