"""Compiles the files of kernels/ with the machine's C compiler, once for each processor, and loads them."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache, partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from ablate.base.cache import cached_bytes

logger = logging.getLogger("ablate.engine.models")
COMPILER = "ABLATE_COMPILER"  # environment: name or path of a C compiler (default: cc); empty: compile nothing
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fPIC", "-shared")
SECONDS = 60  # for the compiler; it needs one
TRIAL_SECONDS = 20  # it needs a hundredth of one
NEEDED = "avx512f"  # of /proc/cpuinfo: with shorter vectors torch is faster
CHANGING = ("processor", "cpu mhz", "core id", "apicid", "initial apicid", "bogomips", "cpu cores", "siblings")

REFUSED = b"refused: "  # in place of a library: why there is none
TRIAL = """
import ctypes, mmap, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
library, memory = ctypes.CDLL("/proc/self/fd/" + sys.argv[1]), []
def value(kind):
    if kind == "P":
        memory.append(mmap.mmap(-1, 2**24))
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory[-1])))
    return ctypes.c_long(17) if kind == "l" else ctypes.c_float(0.5)
for word in sys.argv[2:]:
    name, kinds = word.split(":")
    getattr(library, name)(*map(value, kinds))
"""  # 17: a whole vector of each kernel and a rest

KINDS = {"P": ctypes.c_void_p, "l": ctypes.c_long, "f": ctypes.c_float}
SIGNATURES = {
    "attend": "P" * 7 + "l" * 6 + "f",
    "attend_back": "P" * 10 + "l" * 5 + "f",
    "normalise": "P" * 7 + "l" * 5 + "f",
    "normalise_back": "P" * 9 + "l" * 4,
    "affine": "P" * 5 + "l" * 6,
    "affine_back_x": "P" * 4 + "l" * 5,
    "affine_back_w": "P" * 4 + "l" * 4,
}


@lru_cache(maxsize=1)
def load_kernels() -> ctypes.CDLL | None:
    """Return the functions of kernels/, compiled for this processor, or None where they cannot be compiled.

    The user's cache keeps the compiled file, or why there is none. Its name depends on the source, the compiler and
    the processor. A library is first tried in another process, which a damaged one may end.
    """
    wanted, processor = os.environ.get(COMPILER, "cc"), describe_processor()
    if not wanted or NEEDED not in processor.split() or not hasattr(os, "memfd_create"):
        return None
    try:
        compiler = _path_of(wanted)
        parts = files("ablate.engine.models").joinpath("kernels").iterdir()
        source = {part.name: part.read_bytes() for part in parts if part.name.endswith((".c", ".h"))}
        about = compiler.stat()
        key = (compiler, about.st_size, about.st_mtime_ns, FLAGS, processor, sorted(source.items()))
        name = f"{sha256(repr(key).encode()).hexdigest()[:32]}.so"
        content = cached_bytes("kernels", name, partial(_compile_or_refuse, compiler, source), good=_is_sound)
        if content.startswith(REFUSED):
            raise OSError(content.removeprefix(REFUSED).decode(errors="replace"))
        return _load(content)
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        logger.info("networks train without compiled kernels: %s: %s", wanted, _said(error))
        return None


def _said(error: BaseException) -> str:
    return " ".join((getattr(error, "stderr", None) or str(error)).split())[-500:]


def _path_of(compiler: str) -> Path:
    found = shutil.which(compiler)
    if found is None:
        raise FileNotFoundError("there is no such C compiler")
    return Path(found).resolve()


def describe_processor() -> str:
    """Return what /proc/cpuinfo says about the first processor, without what changes; empty if it cannot be read."""
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0]
    except OSError:
        return ""
    lines = (line for line in first.splitlines() if line.partition(":")[0].strip().lower() not in CHANGING)
    return "\n".join(lines)


def _compile(compiler: Path, source: Mapping[str, bytes]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in source.items():
            (Path(folder) / name).write_bytes(content)
        code = sorted(name for name in source if name.endswith(".c"))
        command = [str(compiler), *FLAGS, "-o", "kernels.so", *code]
        quiet: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "stdin": subprocess.DEVNULL}
        subprocess.run(command, cwd=folder, check=True, timeout=SECONDS, **quiet)
        return (Path(folder) / "kernels.so").read_bytes()


def _compile_or_refuse(compiler: Path, source: Mapping[str, bytes]) -> bytes:
    """Return the compiled library or, after REFUSED, why there is none: a compiler that hangs is not tried again."""
    try:
        content = _compile(compiler, source)
        fault = _fault(content)
    except (FileNotFoundError, subprocess.SubprocessError) as error:
        fault = _said(error)
    return content if fault is None else REFUSED + fault.encode()


def _is_sound(kept: bytes) -> bool:
    return kept.startswith(REFUSED) or _fault(kept) is None


def _fault(content: bytes) -> str | None:
    """Return what is wrong with a library, or None: another process loads it and calls each function once."""
    words = [f"{name}:{kinds}" for name, kinds in SIGNATURES.items()]
    descriptor = _in_memory(content)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", TRIAL, str(descriptor), *words],
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"what it compiled does not end within {TRIAL_SECONDS} s"
    finally:
        os.close(descriptor)
    if done.returncode < 0:
        return f"what it compiled ends a process by signal {-done.returncode}"
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else None


def _in_memory(content: bytes) -> int:
    """Return the descriptor of a file in memory with this content."""
    descriptor = os.memfd_create("ablate-kernels")
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return descriptor


def _load(content: bytes) -> ctypes.CDLL:
    """Load a library from memory: what was checked is what is loaded, whatever happens to the file.

    Its descriptor stays open: the loader takes a library of the same name, which has this number, for the same library.
    """
    descriptor = _in_memory(content)
    library = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    for name, kinds in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [KINDS[kind] for kind in kinds], None
    return library
