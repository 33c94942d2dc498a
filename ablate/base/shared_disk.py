"""Whether SQLite may keep a write-ahead log: its index is memory, which one machine shares (sqlite.org/wal.html)."""

import os
from pathlib import Path

LOCAL = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})


def journal_mode(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return SQLite's journal mode for files in `folder`: `wal`, or `delete` where other machines may open them."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = mounts.read_text(errors="replace").splitlines() if mounts.exists() else []
    kinds = {line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == number}
    return "wal" if kinds <= LOCAL else "delete"
