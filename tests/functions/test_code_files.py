"""What of a user's package is code: only that is hashed, sent to workers and put into a model."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

from ablate.functions.code.archive import zip_code
from ablate.functions.code.files import code_files

CODE = ["__init__.py", "kernels/fast.cu", "net.py", "speedup.cpython-311-x86_64-linux-gnu.so"]
SECRETS = [
    ".env", ".git/config", ".git/hooks/pre-push.py", ".aws/credentials", ".hidden.py", "__pycache__/net.pyc",
    "id_rsa", "secrets.json", "service-account.yaml", "key.pem", "data/rows.csv", "notes.PY~", "kernels/.fast.cu.swp",
]  # fmt: skip


def package(folder: Path) -> Path:
    """Write a package with code, with what is none, and with links to a file, a folder, and back to itself."""
    place, other = folder / "mynet", folder / "elsewhere"
    for name in [f"mynet/{name}" for name in CODE + SECRETS] + ["elsewhere/private.py"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (place / "linked_file.py").symlink_to(other / "private.py")
    (place / "linked_folder").symlink_to(other)
    (place / "loop").symlink_to(place)
    (place / "inside.py").symlink_to(place / "id_rsa")
    os.mkfifo(place / "pipe.py")
    return place


def test_links_dot_names_pipes_and_what_is_not_code_are_left_out_everywhere(tmp_path: Path) -> None:
    place = package(tmp_path)
    expected = [f"mynet/{name}" for name in CODE]
    assert sorted(name for _, name in code_files(place)) == expected
    assert sorted(zipfile.ZipFile(io.BytesIO(zip_code([place]))).namelist()) == expected


def test_a_package_or_module_that_the_user_names_may_itself_be_a_link(tmp_path: Path) -> None:
    package(tmp_path)
    (tmp_path / "named").symlink_to(tmp_path / "mynet")
    (tmp_path / "single.py").symlink_to(tmp_path / "mynet" / "net.py")
    assert sorted(name for _, name in code_files(tmp_path / "named")) == [f"named/{name}" for name in CODE]
    assert [name for _, name in code_files(tmp_path / "single.py")] == ["single.py"]
