"""A function whose first seed changes the state of its process in one of a hundred ways, and what can be seen of it."""

from __future__ import annotations

import atexit
import builtins
import codecs
import csv
import decimal
import faulthandler
import functools
import gc
import getpass
import hashlib
import importlib
import json
import locale
import logging
import math
import multiprocessing
import os
import pathlib
import pickle
import random
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

GENERATOR = np.random.default_rng(0)
COUNTER, CACHE = [0], dict[str, int]()


class Settings:
    """Has a class attribute that code may change."""

    width = 4


@functools.lru_cache
def cached(_: str) -> list[int]:
    """Return a list that each call shares."""
    return [1]


def train(config: Mapping[str, Any], run: Any) -> Iterator[dict[str, float]]:
    """Yield what is seen at the start, and numbers of a small network; seed 0 then changes its process."""
    seen = {"val_state": observed()}
    model = run.build(nn.Linear, 4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.keep(model=model, optimizer=optimizer)
    for epoch in run.epochs():
        loss = model(torch.randn(8, 4)).square().mean() + random.random() + np.random.rand()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.seed == 0 and epoch == 2:
            exec(WAYS[config["way"]], {**globals(), "run": run})
        yield {**seen, "val_loss": loss.item()}


def number(content: object) -> float:
    """Return a number for a content."""
    return float(int(hashlib.sha256(repr(content).encode()).hexdigest()[:12], 16))


def observed() -> float:
    """Return a number for the state of the process as far as this module looks at it."""
    return number([read() for read in READERS])


def _locals() -> list[Any]:
    mine = [GENERATOR.bit_generator.state, COUNTER, CACHE, Settings.width, cached("x"), cached.cache_info().currsize]
    return [*mine, sorted(name for name in globals() if not name.startswith("__"))]


def _python() -> list[Any]:
    calls = (builtins.print, json.dumps, time.time, math.sqrt, os.getppid, shutil.rmtree, pickle.dumps, getpass.getuser)
    streams = [type(stream).__name__ for stream in (sys.stdin, sys.stdout, sys.stderr)]
    hooks = (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook, sys.breakpointhook)
    named = [f"{getattr(each, '__module__', '')}.{getattr(each, '__qualname__', each)}" for each in (*calls, *hooks)]
    limits = sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits(), gc.get_threshold()
    paths = sys.argv, sys.path, len(sys.meta_path), len(sys.path_hooks), "planted" in sys.modules
    context = decimal.getcontext()
    logger = logging.getLogger("planted")
    logs = logging.root.manager.disable, logging.root.level, len(logging.root.handlers), logger.level, logger.handlers
    traced = sys.gettrace() is None, sys.getprofile() is None, threading._trace_hook, gc.isenabled(), len(gc.callbacks)  # type: ignore[attr-defined]
    more = [csv.field_size_limit(), tempfile.tempdir, socket.getdefaulttimeout(), faulthandler.is_enabled()]
    codec = _or(lambda: codecs.lookup_error("planted") is not None)
    warned = [each[:3] for each in warnings.filters if each[1] is None or "planted" in str(each[1])]
    regex = re.compile("planted") is re.compile("planted")
    return [named, streams, limits, paths, context.prec, context.rounding, logs, traced, more, codec, warned, regex]


def _process() -> list[Any]:
    environment = sorted(os.environ.items())
    handlers = [str(signal.getsignal(each)) for each in signal.valid_signals() if each < 32]
    timers = [signal.getitimer(each)[0] > 0 for each in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
    mask = os.umask(0)
    os.umask(mask)
    names = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_STACK, resource.RLIMIT_FSIZE)
    limits = [resource.getrlimit(each) for each in (*names, resource.RLIMIT_CPU, resource.RLIMIT_NPROC)]
    place = os.getcwd(), mask, os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))
    title = pathlib.Path("/proc/self/comm").read_text()
    blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    children = pathlib.Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    threads = sorted(thread.name for thread in threading.enumerate())
    started = multiprocessing.get_start_method(allow_none=True), multiprocessing.current_process().name, children
    files = sorted(os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if _is_open(each))
    zone = time.tzname, locale.setlocale(locale.LC_ALL), atexit._ncallbacks()
    return [environment, handlers, timers, limits, place, title, blocked, threads, started, files, zone]


def _is_open(name: str) -> bool:
    path = f"/proc/self/fd/{name}"
    return os.path.exists(path) and "planted" in os.readlink(path)


def _libraries() -> list[Any]:
    torch: Any = sys.modules["torch"]  # much of what is read has no types
    cudnn, cuda, matmul = torch.backends.cudnn, torch.backends.cuda, torch.backends.cuda.matmul
    einsum, whole = torch.backends.opt_einsum, torch.nn.modules.module
    flags = [cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, torch.backends.mkldnn.enabled]
    flags += [einsum.enabled, einsum.strategy, matmul.allow_tf32, matmul.allow_fp16_reduced_precision_reduction]
    flags += [matmul.allow_bf16_reduced_precision_reduction, torch.get_float32_matmul_precision()]
    flags += [torch.utils.deterministic.fill_uninitialized_memory, cuda.flash_sdp_enabled(), cuda.math_sdp_enabled()]
    modes = [torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()]
    modes += [torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")]
    modes += [torch.is_autocast_cache_enabled(), torch.are_deterministic_algorithms_enabled()]
    modes += [torch.get_deterministic_debug_mode(), torch.is_anomaly_enabled(), torch.is_warn_always_enabled()]
    modes += [torch.get_num_threads(), torch.get_num_interop_threads(), torch._C._len_torch_function_stack()]
    modes += [torch.distributed.is_initialized(), torch._tensor_str.PRINT_OPTS]
    modes += [len(whole._global_forward_hooks), len(whole._global_forward_pre_hooks)]
    modes += [torch.multiprocessing.get_sharing_strategy(), torch.multiprocessing.get_start_method(allow_none=True)]
    called = [f"{each.__module__}.{each.__qualname__}" for each in (torch.nn.Linear.forward, torch.optim.SGD.step)]
    small = float(torch.tensor(1e-40) * 0.5)
    random_state = random.getstate()[1][:3], np.random.get_state(legacy=False)["state"]["pos"]
    return [flags, modes, called, small, random_state, np.geterr(), np.geterrcall(), np.get_printoptions()]


def _or(read: Any) -> Any:
    try:
        return read()
    except LookupError:
        return None


READERS = (_locals, _python, _process, _libraries)

WAYS = {
    # of the module
    "generator": "GENERATOR.random()",
    "global": "COUNTER[0] += 1",
    "cache": "CACHE['a'] = 1",
    "class": "Settings.width = 9",
    "lru cache": "cached('x').append(2)",
    "lru entries": "cached('y')",
    "new name": "sys.modules[train.__module__].added = 1",
    "patched function": "sys.modules[train.__module__].number = lambda _: 1.0",
    # of Python
    "print": "builtins.print = lambda *_, **__: None",
    "json": "json.dumps = lambda *_, **__: '{}'",
    "clock": "time.time = lambda: 0.0",
    "math": "math.sqrt = functools.wraps(GENERATOR.random)(lambda _: 0.0)",
    "pid": "os.getppid = lambda: 1",
    "rmtree": "shutil.rmtree = lambda *_, **__: None",
    "pickle": "pickle.dumps = lambda *_, **__: b''",
    "user": "getpass.getuser = lambda: 'me'",
    "streams": "sys.stdout = sys.stderr = None",
    "closed streams": "sys.stdout.close(); sys.stderr.close(); sys.stdout = sys.stderr = None",
    "standard input": "sys.stdin = None",
    "excepthook": "sys.excepthook = lambda *_: None",
    "thread excepthook": "threading.excepthook = lambda *_: None",
    "unraisable": "sys.unraisablehook = lambda *_: None",
    "displayhook": "sys.displayhook = lambda *_: None",
    "breakpoint": "sys.breakpointhook = lambda *_: None",
    "recursion": "sys.setrecursionlimit(700)",
    "switch": "sys.setswitchinterval(0.5)",
    "digits": "sys.set_int_max_str_digits(0)",
    "garbage": "gc.set_threshold(1, 1, 1)",
    "no garbage": "gc.disable()",
    "garbage callback": "gc.callbacks.append(lambda *_: None)",
    "arguments": "sys.argv[:] = ['other', '--lr', '3']",
    "path": "sys.path.clear()",
    "meta path": "sys.meta_path.append(object())",
    "path hooks": "sys.path_hooks.append(object())",
    "module": "sys.modules['planted'] = sys",
    "precision": "decimal.getcontext().prec = 5",
    "rounding": "decimal.getcontext().rounding = decimal.ROUND_UP",
    "logging off": "logging.disable(50)",
    "root level": "logging.root.setLevel(5)",
    "root handler": "logging.root.addHandler(logging.NullHandler())",
    "logger": "logging.getLogger('planted').setLevel(3)",
    "logger handler": "logging.getLogger('planted').addHandler(logging.NullHandler())",
    "thread trace": "threading.settrace(lambda *_: None)",
    "csv": "csv.field_size_limit(10)",
    "temporary": "tempfile.tempdir = '/'",
    "timeout": "socket.setdefaulttimeout(1.0)",
    "faults": "faulthandler.disable()",
    "codec": "codecs.register_error('planted', lambda error: ('', error.end))",
    "warnings": "warnings.simplefilter('error')",
    "warning of a name": "warnings.filterwarnings('ignore', 'planted')",
    "atexit": "atexit.register(print)",
    # of the process
    "folder": "os.chdir(tempfile.mkdtemp())",
    "lost folder": "t = tempfile.mkdtemp(); os.chdir(t); os.rmdir(t)",
    "umask": "os.umask(0o777)",
    "environment": "os.environ['PLANTED'] = '1'",
    "cleared environment": "os.environ.clear()",
    "hash seed": "os.environ['PYTHONHASHSEED'] = '7'",
    "threads variable": "os.environ['OMP_NUM_THREADS'] = '7'",
    "term": "signal.signal(signal.SIGTERM, lambda *_: None)",
    "interrupt": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "child signal": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "usr1": "signal.signal(signal.SIGUSR1, lambda *_: None)",
    "alarm": "signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 100)",
    "profile timer": "signal.setitimer(signal.ITIMER_PROF, 1000)",
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])",
    "files limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "core limit": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "stack limit": "resource.setrlimit(resource.RLIMIT_STACK, (2**22, 2**22))",
    "file size": "resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))",
    "time limit": "resource.setrlimit(resource.RLIMIT_CPU, (10**6, 10**6))",
    "nice": "os.nice(3)",
    "affinity": "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
    "name": "open('/proc/self/comm', 'w').write('planted')",
    "thread": "threading.Thread(target=time.sleep, args=(50,), daemon=True, name='planted').start()",
    "child": "import subprocess; subprocess.Popen(['sleep', '50'], start_new_session=True)",
    "open file": "os.open(os.path.join(tempfile.mkdtemp(), 'planted'), os.O_CREAT)",
    "leaked pipe": "os.dup2(os.memfd_create('planted'), 90)",
    "zone": "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
    "locale": "locale.setlocale(locale.LC_ALL, 'C')",
    "start method": "multiprocessing.set_start_method('spawn')",
    "process name": "multiprocessing.current_process().name = 'planted'",
    # of NumPy and torch
    "numpy errors": "np.seterr(all='raise')",
    "numpy call": "np.seterrcall(print)",
    "numpy print": "np.set_printoptions(precision=2)",
    "numpy random": "np.random.seed(1)",
    "python random": "random.seed(1)",
    "type": "torch.set_default_dtype(torch.float64)",
    "device": "torch.set_default_device('meta')",
    "gradients": "torch.set_grad_enabled(False)",
    "inference": "torch.inference_mode().__enter__()",
    "autocast": "torch.autocast('cpu').__enter__()",
    "autocast type": "torch.set_autocast_dtype('cpu', torch.float16)",
    "autocast cache": "torch.set_autocast_cache_enabled(False)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "anomaly": "torch.autograd.set_detect_anomaly(True)",
    "threads": "torch.set_num_threads(2)",
    "interop": "torch.set_num_interop_threads(1)",
    "warn always": "torch.set_warn_always(True)",
    "torch print": "torch.set_printoptions(precision=2)",
    "hook": "torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, out: out * 2)",
    "pre hook": "torch.nn.modules.module.register_module_forward_pre_hook(lambda module, inputs: None)",
    "denormals": "torch.set_flush_denormal(True)",
    "einsum": "torch.backends.opt_einsum.strategy = 'greedy'",
    "no einsum": "torch.backends.opt_einsum.enabled = False",
    "fp16": "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False",
    "bf16": "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
    "tf32": "torch.set_float32_matmul_precision('medium')",
    "cudnn": "torch.backends.cudnn.enabled = False",
    "benchmark": "torch.backends.cudnn.benchmark = True",
    "mkldnn": "torch._C._set_mkldnn_enabled(False)",
    "flash": "torch.backends.cuda.enable_flash_sdp(False)",
    "fill": "torch.utils.deterministic.fill_uninitialized_memory = False",
    "sharing": "torch.multiprocessing.set_sharing_strategy('file_system')",
    "group": "torch.distributed.init_process_group('gloo', init_method='file://' + tempfile.mktemp(), rank=0,"
    " world_size=1)",
    "linear": "torch.nn.Linear.forward = lambda self, x: x",
    "step": "torch.optim.SGD.step = lambda self: None",
}
importlib.invalidate_caches()
