"""What a user's code changes of its process is named, and put back; torch, NumPy and Python themselves are asked."""

from __future__ import annotations

import asyncio
import gc
import io
import locale
import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.config  # torch imports it at the first call of use_deterministic_algorithms

from ablate.functions.process_items import _event_loop
from ablate.functions.process_state import ProcessState


def differences(now: ProcessState, before: ProcessState) -> tuple[str, ...]:
    """Return in words what of `now` is not as it was `before`."""
    return (*map(now._words(before), now._changed(before)), *now._left_over(before))


Change = Callable[[], Any]


def closed_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.close()
    return loop


def umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now


# the words, what changes it, and what the library itself says of it
SETTABLE: list[tuple[str, Change, Callable[[], Any]]] = [
    ("the working directory", lambda: os.chdir("/"), os.getcwd),
    ("sys.argv", lambda: sys.argv.append("--lr"), lambda: list(sys.argv)),
    ("sys.argv", lambda: setattr(sys, "argv", ["other"]), lambda: list(sys.argv)),
    ("sys.path", lambda: sys.path.insert(0, "/src"), lambda: list(sys.path)),
    ("the environment (RANK)", lambda: os.environ.update(RANK="1"), lambda: os.environ.get("RANK")),
    ("the environment (HOME)", lambda: os.environ.pop("HOME"), lambda: os.environ.get("HOME")),
    ("the umask", lambda: os.umask(0o007), umask),
    ("the recursion limit", lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
    ("the locale", lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"), lambda: locale.setlocale(locale.LC_ALL)),
    ("the warnings filters", lambda: warnings.simplefilter("ignore"), lambda: list(warnings.filters)),
    ("the warnings filters", warnings.catch_warnings().__enter__, lambda: id(warnings.filters)),
    ("the handlers and levels of logging (disable)", lambda: logging.disable(50), lambda: logging.root.manager.disable),
    ("the handlers and levels of logging (root)", lambda: logging.root.setLevel(1), lambda: logging.root.level),
    (
        "the handlers and levels of logging (the handlers of the root)",
        lambda: logging.root.addHandler(logging.NullHandler()),
        lambda: list(logging.root.handlers),
    ),
    (
        "the handlers and levels of logging (own)",
        lambda: setattr(logging.getLogger("own"), "disabled", True),
        lambda: logging.getLogger("own").isEnabledFor(50),
    ),
    ("tempfile.tempdir", lambda: setattr(tempfile, "tempdir", "/"), tempfile.gettempdir),
    ("asyncio's event loop", lambda: asyncio.set_event_loop(closed_loop()), _event_loop),
    ("the garbage collector", gc.disable, gc.isenabled),
    ("sys.stdout", lambda: setattr(sys, "stdout", io.StringIO()), lambda: sys.stdout),
    ("sys.excepthook", lambda: setattr(sys, "excepthook", print), lambda: sys.excepthook),
    *(
        (f"the handler of {name}", lambda n=name: signal.signal(signal.Signals[n], signal.SIG_IGN), lambda: None)
        for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP")
    ),
    ("the limit RLIMIT_NOFILE", lambda: files(-1), lambda: resource.getrlimit(resource.RLIMIT_NOFILE)),
    (
        "multiprocessing.set_start_method",
        lambda: multiprocessing.set_start_method("spawn", force=True),
        lambda: multiprocessing.get_start_method(allow_none=True),
    ),
    ("numpy.seterr (divide)", lambda: np.seterr(divide="raise"), np.geterr),
    ("torch.set_default_dtype", lambda: torch.set_default_dtype(torch.float64), lambda: torch.empty(1).dtype),
    ("torch.set_default_device", lambda: torch.set_default_device("meta"), lambda: torch.empty(1).device),
    (
        "torch.set_grad_enabled",
        lambda: torch.set_grad_enabled(False),
        lambda: torch.ones(1, requires_grad=True).mul(2).requires_grad,
    ),
    (
        "torch.autocast (blocks, cpu)",
        lambda: torch.autocast("cpu").__enter__(),
        lambda: torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype,
    ),
    ("torch.set_num_threads", lambda: torch.set_num_threads(3), torch.get_num_threads),
    (
        "torch.use_deterministic_algorithms",
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        torch.are_deterministic_algorithms_enabled,
    ),
    (
        "torch.autograd.set_detect_anomaly",
        lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
        torch.is_anomaly_enabled,
    ),
    (
        "torch.backends.cudnn.deterministic",
        lambda: setattr(torch.backends.cudnn, "deterministic", True),
        lambda: torch.backends.cudnn.deterministic,
    ),
    (
        "torch.backends.cudnn.benchmark",
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        lambda: torch.backends.cudnn.benchmark,
    ),
    (
        "torch's float32 precision (cuda.matmul, float32_matmul_precision, mkldnn.matmul)",
        lambda: torch.set_float32_matmul_precision("high"),
        torch.get_float32_matmul_precision,
    ),
    (
        "torch's float32 precision (cuda.matmul, float32_matmul_precision)",
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        lambda: torch.backends.cuda.matmul.fp32_precision,
    ),
    (
        "torch.backends.mkldnn.enabled",
        lambda: torch._C._set_mkldnn_enabled(False),
        lambda: torch.backends.mkldnn.enabled,
    ),
    (
        "the fast path of attention",
        lambda: torch.backends.mha.set_fastpath_enabled(False),
        torch.backends.mha.get_fastpath_enabled,
    ),
    (
        "the hooks of all modules (_global_forward_hooks)",
        lambda: torch.nn.modules.module.register_module_forward_hook(lambda *_: torch.zeros(1)),
        lambda: torch.nn.Linear(1, 1)(torch.ones(1)).requires_grad,
    ),
    (
        "the attention kernel flash",
        lambda: torch.backends.cuda.enable_flash_sdp(False),
        torch.backends.cuda.flash_sdp_enabled,
    ),
    (
        "torch.multiprocessing.set_sharing_strategy",
        lambda: torch.multiprocessing.set_sharing_strategy("file_system"),
        torch.multiprocessing.get_sharing_strategy,
    ),
]


def files(more: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft + more, hard))


@contextmanager
def kept() -> Iterator[ProcessState]:
    """Give the state of now, and put it back at the end (pytest changes the process between two phases of a test)."""
    before = ProcessState.now()
    try:
        yield before
    finally:
        before.put_back()


@pytest.mark.parametrize(
    ("words", "change", "ask"), SETTABLE, ids=[f"{i}-{each[0]}" for i, each in enumerate(SETTABLE)]
)
def test_a_change_is_named_and_put_back(words: str, change: Change, ask: Callable[[], Any]) -> None:
    told = ask()
    with kept() as before:
        opened = change()
        assert differences(ProcessState.now(), before) == (words,)
        assert ask() != told or ask() is None
        assert before.put_back() == ()
        assert differences(ProcessState.now(), before) == ()
        assert ask() == told
    del opened  # a context manager that is closed by the garbage collector would put things back itself


def test_nothing_is_said_where_nothing_was_changed() -> None:
    with kept() as before:
        with torch.no_grad(), torch.autocast("cpu"), np.errstate(all="raise"), warnings.catch_warnings():
            pass
        assert differences(ProcessState.now(), before) == ()
        assert before.put_back() == ()


def test_a_timer_of_a_user_is_stopped_and_its_handler_removed() -> None:
    handler, left = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0)
    with kept() as before:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.alarm(1000)
        assert differences(ProcessState.now(), before) == ("the handler of SIGALRM", "the alarm clock (signal.alarm)")
        assert before.put_back() == ()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert signal.getsignal(signal.SIGALRM) == handler
    signal.setitimer(signal.ITIMER_REAL, *left)  # that of pytest


@pytest.mark.parametrize(
    ("words", "block"),
    [
        ("torch.inference_mode", torch.inference_mode),
        ("a torch function mode, such as `with torch.device(...)`", lambda: torch.device("meta")),
        (
            "a torch dispatch mode",
            lambda: __import__("torch.utils.flop_counter").utils.flop_counter.FlopCounterMode(display=False),
        ),
        ("torch's hooks for saved tensors", torch.autograd.graph.save_on_cpu),
        ("torch's forward-mode differentiation", torch.autograd.forward_ad.dual_level),
    ],
)
def test_a_block_that_no_call_can_have_for_itself_is_named(words: str, block: Callable[[], Any]) -> None:
    before = ProcessState.of_turn()
    with block():
        assert words in differences(ProcessState.of_turn(), before)
        assert words in " ".join(before.put_back())
    assert differences(ProcessState.of_turn(), before) == ()


def test_the_default_device_is_no_function_mode_and_a_block_beside_it_is() -> None:
    with kept() as before:
        torch.set_default_device("cpu")
        assert differences(ProcessState.now(), before) == ("torch.set_default_device",)
        with torch.device("meta"):
            assert len(differences(ProcessState.now(), before)) == 2


def test_autocast_that_was_left_open_forgets_the_weights_that_it_has_cast() -> None:
    """torch casts a weight once in each block: weights changed since then would stay unseen."""
    weight = torch.nn.Parameter(torch.ones(1, 1))
    outside = ProcessState.of_turn()
    block = torch.autocast("cpu")
    block.__enter__()
    assert torch.mm(torch.ones(1, 1), weight).item() == 1.0
    inside = ProcessState.of_turn()
    assert outside.put_back() == ()
    with torch.no_grad():
        weight.fill_(2.0)
    assert torch.mm(torch.ones(1, 1), weight).dtype == torch.float32
    assert inside.put_back() == ()
    found = torch.mm(torch.ones(1, 1), weight)
    assert (found.dtype, found.item()) == (torch.bfloat16, 2.0)
    block.__exit__(None, None, None)
    assert differences(ProcessState.of_turn(), outside) == ()


def test_threads_and_processes_that_were_left_are_named() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="prefetcher")
    monitor = threading.Thread(target=stop.wait, name="TMonitor", daemon=True)
    ended = threading.Thread(target=lambda: None)
    with kept() as before, subprocess.Popen(["sleep", "100"]) as child, subprocess.Popen(["true"]) as dead:
        for each in (thread, monitor, ended):
            each.start()
        try:
            ended.join()
            os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # a child that has ended does nothing
            left = (
                "a thread that is still running ('prefetcher')",
                f"a process that is still running ({child.pid}, sleep)",
            )
            assert differences(ProcessState.now(), before) == left
            assert before.put_back() == left
        finally:
            child.kill()
            stop.set()
        thread.join(), monitor.join(), child.wait()
        assert differences(ProcessState.now(), before) == ()


def test_a_folder_that_was_deleted_is_left_and_found_again(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with kept() as before:
        os.chdir(gone)
        gone.rmdir()
        within = ProcessState.of_turn()
        assert differences(within, before) == ("the working directory",)
        assert before.put_back() == ()
        assert within.put_back() == ()
        with pytest.raises(FileNotFoundError):
            os.getcwd()


IN_A_PROCESS = """
import torch, torch.distributed as dist, os
from ablate.functions.process_state import ProcessState
before = ProcessState.now()
{change}
print(*before.put_back(), sep="|", flush=True)
os._exit(0)  # torch crashes where a profile is still being made
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("torch.set_num_interop_threads(torch.get_num_interop_threads() + 1)", "torch.set_num_interop_threads"),
        (
            "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)",
            "torch.distributed.init_process_group",
        ),
        ("os.nice(1)", "the niceness"),
        (
            "import sys; sys.path.insert(0, sys.argv[1]); import variant.inner",
            "modules of a folder that it put on sys.path (variant)",
        ),
        ("kept = [open(os.devnull) for _ in range(70)]", " files that are still open"),
        ("os.dup2(os.open(os.devnull, os.O_RDONLY), 0)", "file descriptor 0"),
        ("profiler = torch.profiler.profile(); profiler.__enter__()", "torch's profiler"),
        ("import threading; threading.Thread(target=lambda: __import__('time').sleep(5)).start()", ""),
    ],
)
def test_what_is_set_once_in_a_process_cannot_be_put_back(change: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "variant").mkdir()
    (tmp_path / "variant" / "inner.py").touch()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_A_PROCESS.format(change=change), str(tmp_path)],
        stdin=subprocess.PIPE, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (words or "a thread that is still running") in done.stdout


def test_torch_is_not_imported_for_it() -> None:
    code = (
        "from ablate.functions.process_state import ProcessState\nimport sys\n"
        "assert ProcessState.now().put_back() == ()\nassert not {'torch', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


COUNTS = """
import sys
import torch
from ablate.functions.process_state import ProcessState
state, calls = ProcessState.now(), []
for act in (ProcessState.now, state.put_back):
    calls.clear()
    sys.setprofile(lambda _, event, __: calls.append(event))
    act()
    sys.setprofile(None)
    print(sum(event in ("call", "c_call") for event in calls))
"""


def test_a_state_is_read_and_put_back_in_few_calls() -> None:
    """About 700 are 0.2 ms, and each turn pays for them; they are counted, since time depends on the machine."""
    done = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, check=True)
    read, put_back = map(int, done.stdout.split())
    assert 0 < read < 2000
    assert 0 < put_back < 2000
