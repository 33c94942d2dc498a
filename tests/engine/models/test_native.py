"""Kernels are compiled once, for each compiler and processor, and networks train as well where they cannot be."""

from __future__ import annotations

import ctypes
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from ablate.engine.models import fused, native
from support.kernel_cases import FAULTS, compiled, opened, pretend_compiled, real_compiler

load: Callable[[], ctypes.CDLL | None] = native.load_kernels.__wrapped__  # anew at each call


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A C compiler that adds a line to the file `calls` beside it whenever it is called, and an empty cache."""
    path, noted, real = tmp_path / "compiler", shlex.quote(str(tmp_path / "calls")), shlex.quote(real_compiler())
    write_script(path, f'echo called >> {noted}; exec {real} "$@" -O0')
    monkeypatch.setenv("REAL", real_compiler())
    monkeypatch.setenv("NAMES", " ".join(native.SIGNATURES))
    monkeypatch.setenv("OWN", f"{real_compiler()} -shared -fPIC -o kernels.so x.c")
    monkeypatch.setenv(native.COMPILER, str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def write_script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def calls(compiler: Path) -> int:
    noted = compiler.with_name("calls")
    return len(noted.read_text().splitlines()) if noted.exists() else 0


def kept(compiler: Path) -> list[Path]:
    return sorted((compiler.parent / "cache" / "ablate" / "kernels").glob("*.so"))


def test_they_are_compiled_once_and_kept(compiler: Path) -> None:
    assert all(load() is not None for _ in range(3))
    assert calls(compiler) == 1
    assert len(kept(compiler)) == 1


def test_a_damaged_file_is_compiled_anew(compiler: Path) -> None:
    load()
    (path,) = kept(compiler)
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"", whole[:5000] + b"damaged!" + whole[5008:]):
        path.write_bytes(damaged)
        before = calls(compiler)
        assert load() is not None
        assert calls(compiler) == before + 1
        assert path.read_bytes().partition(b"\n")[2].startswith(b"\x7fELF")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o755])
def test_what_others_could_have_written_is_not_loaded(mode: int, compiler: Path) -> None:
    load()
    (path,) = kept(compiler)
    path.write_bytes(sha256(b"planted").hexdigest().encode() + b"\nplanted")  # as whole as a file of ours
    path.parent.chmod(mode)
    assert load() is not None
    assert calls(compiler) == 2
    assert path.read_bytes().endswith(b"planted")


def test_another_compiler_processor_or_source_gets_a_file_of_its_own(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    compiler.write_text(compiler.read_text() + "# another version\n")
    load()
    monkeypatch.setattr(native, "describe_processor", lambda: "flags : another avx512f")
    load()
    changed = tmp_path / "models" / "kernels"
    changed.mkdir(parents=True)
    for path in Path(native.__file__).with_name("kernels").iterdir():
        text = path.read_text()
        changed.joinpath(path.name).write_text(f"/* changed */\n{text}" if path.suffix == ".h" else text)
    monkeypatch.setattr(native, "files", lambda package: changed.parent)
    load()
    assert calls(compiler) == len(kept(compiler)) == 4


def test_without_a_folder_for_the_cache_they_are_compiled_each_time(compiler: Path) -> None:
    (compiler.parent / "cache").write_text("a file where the folder should be")
    assert [load() is None for _ in range(2)] == [False, False]
    assert calls(compiler) == 2


@pytest.mark.parametrize("command", ["", "no-such-compiler", "/no/such/compiler"])
def test_without_a_compiler_there_are_none(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.COMPILER, command)
    assert load() is None


def test_for_an_unknown_processor_nothing_is_compiled(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "describe_processor", str)
    assert load() is None
    assert calls(compiler) == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("echo the compiler is broken >&2; exit 1", "the compiler is broken"),
        ('printf "kernels.c:1: error\\n  1 | int\\n    | ^\\n" >&2; exit 1', "kernels.c:1: error"),
        ("exit 0", "No such file"),
        ("exec sleep 60", "timed out"),
        ('"$REAL" "$@" && truncate -s 3000 kernels.so', "ends a process by signal 7"),
        ('for f in $NAMES; do echo "void $f(void){__builtin_trap();}"; done > x.c; $OWN', "by signal 4"),
        ('for f in $NAMES; do echo "void $f(void){for(;;);}"; done > x.c; $OWN', "does not end within"),
    ],
)
def test_a_compiler_that_fails_is_logged_in_one_line(
    line: str, said: str, compiler: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_script(compiler, f"echo called >> {shlex.quote(str(compiler.with_name('calls')))}; {line}")
    monkeypatch.setattr(native, "SECONDS", 0.1 if "sleep" in line else native.SECONDS)
    monkeypatch.setattr(native, "TRIAL_SECONDS", 1.0 if "for(;;)" in line else native.TRIAL_SECONDS)
    with caplog.at_level(logging.DEBUG, logger="ablate.engine.models"):
        assert load() is None
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    (message,) = caplog.messages
    assert message.startswith(f"networks train without compiled kernels: {compiler}: ")
    assert said in message
    assert "\n" not in message
    assert load() is None
    assert calls(compiler) == 1, "the refusal is kept, with its reason"
    assert caplog.messages == [message]


def test_a_whole_library_of_another_processor_is_compiled_anew(compiler: Path) -> None:
    load()
    (path,) = kept(compiler)
    foreign = path.with_name("foreign.so")
    traps = "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in native.SIGNATURES)
    command = [os.environ["REAL"], "-shared", "-fPIC", "-x", "c", "-o", str(foreign), "-"]
    subprocess.run(command, input=traps.encode(), check=True)
    path.write_bytes(sha256(foreign.read_bytes()).hexdigest().encode() + b"\n" + foreign.read_bytes())
    assert load() is not None
    assert calls(compiler) == 2


def test_what_is_compiled_is_accepted_and_with_any_fault_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault in ("", *FAULTS):
        library = opened(compiled(tmp_path, fault=fault))
        pretend_compiled(library, monkeypatch)
        assert fused.checked_kernels() is (None if fault else library), fault


def test_a_second_library_is_not_taken_for_the_first(tmp_path: Path) -> None:
    first, second = (native._load(compiled(tmp_path, fault=fault).read_bytes()) for fault in ("", "bias"))
    assert first._handle != second._handle
    with pytest.raises(OSError, match=r"file too short|invalid ELF header"):
        native._load(b"no library")


def test_the_comparison_with_torch_imports_nothing_slow() -> None:
    imported = "from ablate.engine.models.fused import checked_kernels"
    script = f"import sys; {imported}; checked_kernels(); print('sympy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_processors_with_shorter_vectors_have_no_kernels(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "describe_processor", lambda: "flags : sse2 avx2 avx512bw")
    assert load() is None
    assert calls(compiler) == 0


@pytest.mark.parametrize("line", ["torch.set_default_dtype(torch.bfloat16)", "torch.inference_mode().__enter__()"])
def test_the_comparison_does_not_depend_on_torchs_defaults(line: str) -> None:
    script = f"import torch\n{line}\nfrom ablate.engine.models import fused\nprint(fused.checked_kernels() is not None)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{native.load_kernels() is not None}\n"
