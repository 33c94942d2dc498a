"""The objects of a store."""

from __future__ import annotations

from pyarrow.fs import FileSelector, FileSystem, FileType


def objects(url: str) -> dict[str, bytes]:
    """Return everything below an S3 URL: content by name relative to it."""
    files, base = FileSystem.from_uri(url)
    found = files.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
    return {
        info.path.removeprefix(f"{base}/"): files.open_input_file(info.path).read()
        for info in found
        if info.type == FileType.File
    }
