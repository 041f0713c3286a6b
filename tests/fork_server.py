"""Starts our processes by forking one that has imported what they all import.

PyTorch, transformers and gRPC are most of what a service does when it starts. `install` changes
how this process runs our modules by `python -m`: at the first worker a server begins, which is
forked for all others. They have the command line, environment, files and parent that they would
have otherwise, and end as Python does. What is started with another environment, or is not ours,
is started as ever.
"""

import atexit
import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TextIO

_IMPORTED = (
    *("torch.distributed", "transformers.modeling_utils", "transformers.generation"),
    *("transformers.models.llama.modeling_llama", "safetensors.torch", "tokenizers"),
    *("grpc.aio", "grpc_health.v1.health_pb2_grpc", "redis.asyncio", "prometheus_client"),
    *("fastapi", "uvicorn", "httpx", "yaml", "jinja2", "llguidance"),
    *("optimist_proposer.service", "optimist_scheduler.service.serve"),
    *("optimist_worker.service.process", "optimist_gateway.server.app"),
)
# Variables that are read after the imports, or change nothing for one thread and local models.
_READ_LATER = (
    *("OPTIMIST_", "OTEL_", "PYTEST_", "GOMP_SPINCOUNT", "HF_HUB_OFFLINE"),
    *("MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "NODE_", "GLOO_"),
)
_SLOW_TO_START = (
    *("optimist_worker", "optimist_worker.conversion", "optimist_proposer", "worker", "serve"),
    "torch.distributed.run",
)
_OURS = ("optimist_", "tests.worker.", "torch.distributed.run")
# A forked process writes its command line and environment over the server's.
_ROOM = "-" * 8000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_PARAMETERS = tuple(inspect.signature(_execute).parameters)


class Start(NamedTuple):
    """A process to start."""

    arguments: list[str]
    """After `python -m`."""
    directory: str
    environment: dict[str, str]
    leads_session: bool
    descriptors: list[int]
    """That it has, the standard ones first."""
    ends_with: int
    """The signal that it gets when its parent ends; 0 for none."""


Starter = Callable[[Start, Sequence[int], Callable[[], object] | None], int]
"""Starts a process with these files as its descriptors, after a call in it; returns its id.

It returns 0 if the process has to be started in another way.
"""


def install() -> None:
    """Lets this process start others by a server."""
    _replace(_Server().start)


class _Server:
    """The process that is forked; it begins with the first worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._environment: dict[str, str] = {}

    def start(
        self, start: Start, files: Sequence[int], prepare: Callable[[], object] | None
    ) -> int:
        """See `Starter`."""
        if prepare is not None and not start.ends_with:
            return 0
        with self._lock:
            if self._socket is None:
                if not any(one in _SLOW_TO_START for one in start.arguments[:2]):
                    return 0
                self._begin()
            if _read_early(start.environment) != _read_early(self._environment):
                return 0
            return self._fork(start, files)

    def _begin(self) -> None:
        self._socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = dict(os.environ)
        with other_end:
            other_end.set_inheritable(True)
            command = [sys.executable, "-m", "tests.fork_server", str(other_end.fileno()), _ROOM]
            os.posix_spawn(sys.executable, command, self._environment | {"ROOM": _ROOM})

    def _fork(self, start: Start, files: Sequence[int]) -> int:
        assert self._socket is not None
        # The server forks twice. Its grandchild loses its parent, and gets this process.
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            request = json.dumps(start._asdict()).encode()
            socket.send_fds(self._socket, [request], list(files))
            return int(self._socket.recv(64))
        finally:
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that libraries may read when they are imported."""
    return {name: text for name, text in environment.items() if not name.startswith(_READ_LATER)}


def _replace(starter: Starter) -> None:
    """Lets `subprocess`, and thus asyncio, start our modules by a starter."""

    def execute(*values: Any) -> None:
        given = dict(zip(_PARAMETERS, values, strict=True))
        words, pid = given["args"], 0
        if isinstance(words, list | tuple) and list(words[:2]) == [sys.executable, "-m"]:
            pid = _start(starter, given) if words[2].startswith(_OURS) else 0
        if not pid:
            _execute(*values)
            return
        popen = given["self"]
        popen.pid, popen._child_created = pid, True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        popen._close_pipe_fds(*(given[end] for end in ends))

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]


def _start(starter: Starter, given: dict[str, Any]) -> int:
    ends = ("p2cread", "c2pwrite", "errwrite")
    files = [own if given[end] == -1 else given[end] for own, end in enumerate(ends)]
    passed = sorted(given["pass_fds"])
    start = Start(
        [str(word) for word in given["args"][2:]],
        os.path.realpath(given["cwd"] or "."),
        dict(os.environ if given["env"] is None else given["env"]),
        given["start_new_session"],
        [0, 1, 2, *passed],
        _find_signal(given["preexec_fn"]),
    )
    return starter(start, [*files, *passed], given["preexec_fn"])


def _find_signal(prepare: Callable[[], object] | None) -> int:
    """Returns the signal of `end_with_this_process`; 0 if that is not what a process runs first."""
    if prepare is None or prepare.__qualname__ != "end_with_this_process.<locals>.ask":
        return 0
    return int(inspect.getclosurevars(prepare).nonlocals["number"])


def _serve(connection: socket.socket) -> None:
    """Forks for each request until there are no more."""
    # Modules stay: to search them for garbage is a quarter of what it takes to import them.
    gc.disable()
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    while True:
        request, files, _, _ = socket.recv_fds(connection, 1 << 20, 64)
        if not request:
            return
        child = os.fork()
        if not child:
            forker = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == forker:
                os.sched_yield()
            connection.send(str(os.getpid()).encode())
            connection.detach()
            start = Start(**json.loads(request))
            if start.ends_with:
                _LIBC.prctl(_PR_SET_PDEATHSIG, start.ends_with, 0, 0, 0)
            _become(start, files)
            _run(start)
            return
        os.waitpid(child, 0)
        for file in files:
            os.close(file)


def _become(start: Start, files: Sequence[int]) -> None:
    """Gives this process what another would inherit where it is started."""
    free = max(*start.descriptors, *files) + 1
    copies = [os.dup2(file, free + index) for index, file in enumerate(files)]
    for descriptor, copy in zip(start.descriptors, copies, strict=True):
        os.dup2(copy, descriptor)
    kept = [*start.descriptors, os.sysconf("SC_OPEN_MAX")]
    for low, high in pairwise(kept):
        os.closerange(low + 1, high)
    if start.leads_session:
        os.setsid()
    os.chdir(start.directory)
    os.environ.clear()
    os.environ.update(start.environment)
    sys.path[0] = start.directory
    # Python has found out at its start whether the server's own can seek.
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, _reopen(descriptor, getattr(sys, name)))
    _show([sys.executable, "-m", *start.arguments], start.environment)


def _reopen(descriptor: int, stream: TextIO) -> TextIO:
    """Returns a standard stream as Python opens it."""
    is_raw = descriptor > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
    return io.TextIOWrapper(
        open(descriptor, "wb" if descriptor else "rb", 0 if is_raw else -1, closefd=False),
        stream.encoding,
        stream.errors,
        line_buffering=descriptor == 2,
        write_through=is_raw,
    )


def _show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Overwrites the command line and the environment that others see of this process."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    variables = [f"{name}={text}" for name, text in environment.items()]
    for index, texts in ((45, command), (47, variables)):
        begin, end = int(fields[index]), int(fields[index + 1])
        shown = "".join(f"{text}\0" for text in texts).encode()
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, shown, min(len(shown), end - begin - 1))


def _run(start: Start) -> None:
    """Runs a module as `python -m` does."""
    _replace(_fork_this)
    sys.argv = list(start.arguments)
    sys.modules["__main__"] = types.ModuleType("__main__")
    runpy._run_module_as_main(start.arguments[0])  # type: ignore[attr-defined]


def _fork_this(start: Start, files: Sequence[int], prepare: Callable[[], object] | None) -> int:
    """Forks this process, if nothing else runs in it than asyncio's waiting threads."""
    others = set(threading.enumerate()) - {threading.main_thread()}
    are_asyncios = all(one.name.startswith("asyncio") for one in others)
    if not are_asyncios or len(list(Path("/proc/self/task").iterdir())) != 1 + len(others):
        return 0
    if child := os.fork():
        return child
    code: object = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if prepare is not None:
            prepare()
        _become(start, files)
        _run(start)
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    # What the forked process was doing must not go on here.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
