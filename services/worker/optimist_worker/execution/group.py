"""The processes that hold a model together, and what they say to each other besides tensors."""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from optimist_common.errors import SetupError, one_line
from optimist_worker.execution.ranks import Ranks

logger = logging.getLogger(__name__)

EXIT_CODE = 1


def end_process(reason: str) -> NoReturn:
    """Ends the process at once, for a supervisor to start it again.

    Threads may be waiting for other ranks inside a collective operation, which nothing but the end
    of the process interrupts.
    """
    logger.critical("%s; the worker ends", reason)
    _exit(EXIT_CODE)


def refuse_start(error: SetupError | None) -> NoReturn:
    """Ends a process that cannot start as `run_or_explain` does; None: all has been said."""
    if error is not None:
        print(f"optimist worker: {error}", file=sys.stderr)  # noqa: T201
    _exit(2)


def _exit(code: int) -> NoReturn:
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


JOIN_SECONDS = 900.0
"""How long a rank waits for the others to start."""
ENDLESS = timedelta(days=365)
"""Of commands, which may be long in coming; `Pulse` notices ranks that are gone."""
SILENT_SECONDS = 30.0
"""After which a rank that gives no sign is taken to be gone."""
_FIRST_BYTES = 4096
"""What the first part of a message carries; longer ones have another."""
_HEADER_BYTES = 8


class GroupError(Exception):
    """The ranks cannot go on together; the text says why."""


@contextmanager
def naming_the_cause() -> Iterator[None]:
    """Turns errors of torch.distributed into GroupErrors."""
    try:
        yield
    except RuntimeError as error:
        # After that gloo guesses at reasons.
        raise GroupError(one_line(error).partition(" This is typically")[0]) from error


def split_message(data: bytes) -> Iterator[torch.Tensor]:
    """Yields the parts in which a message goes: one of _FIRST_BYTES, and what is left over."""
    first = bytearray(_FIRST_BYTES)
    first[:_HEADER_BYTES] = len(data).to_bytes(_HEADER_BYTES, "little")
    head = data[: _FIRST_BYTES - _HEADER_BYTES]
    first[_HEADER_BYTES : _HEADER_BYTES + len(head)] = head
    yield torch.frombuffer(first, dtype=torch.uint8)
    if len(data) > len(head):
        yield torch.frombuffer(bytearray(data[len(head) :]), dtype=torch.uint8)


def receive_message(
    receive_part: Callable[[torch.Tensor], Any], timeout_seconds: float | None
) -> bytes:
    """Waits for a message that was sent as `split_message` splits it.

    `receive_part` begins to receive a part into a tensor, and returns what to wait for, if
    anything. Raises GroupError if its sender is gone, or silent for longer; None waits for ever.
    """
    timeout = ENDLESS if timeout_seconds is None else timedelta(seconds=timeout_seconds)

    def receive(size: int) -> bytes:
        part = torch.empty(size, dtype=torch.uint8)
        with naming_the_cause():
            work = receive_part(part)
            if work is not None:
                work.wait(timeout)
        return part.numpy().tobytes()

    first = receive(_FIRST_BYTES)
    size = int.from_bytes(first[:_HEADER_BYTES], "little")
    data = first[_HEADER_BYTES : _HEADER_BYTES + size]
    rest = size - len(data)
    return data + receive(rest) if rest else data


class Group:
    """The ranks of one model. Commands, and all else said here, go in the same order at all."""

    def __init__(self, ranks: Ranks, device_type: str, timeout_seconds: float) -> None:
        """Joins the others, who may be behind in a pass for some seconds.

        The default group of torch.distributed is for tensors: nccl on `cuda`, where the device is
        that of the local rank, and gloo on the `cpu`. Raises SetupError if they cannot be reached.
        """
        self.ranks = ranks
        device = torch.device(device_type, ranks.local_rank) if device_type == "cuda" else None
        try:
            self.store = _open_store(ranks)
            # For what joins the ranks PyTorch takes only a pass's time.
            self.store.set(f"joined/{ranks.rank}", "")
            everyone = [f"joined/{rank}" for rank in range(ranks.world_size)]
            self.store.wait(everyone, timedelta(seconds=JOIN_SECONDS))
            dist.init_process_group(
                "gloo" if device is None else "nccl",
                store=dist.PrefixStore("group", self.store),  # type: ignore[attr-defined]
                rank=ranks.rank,
                world_size=ranks.world_size,
                timeout=timedelta(seconds=timeout_seconds),
                device_id=device,
            )
            self._commands = dist.new_group(backend="gloo", timeout=ENDLESS)
            silent = timedelta(seconds=SILENT_SECONDS)
            self._pulse = dist.new_group(backend="gloo", timeout=silent)
        except (RuntimeError, OSError) as error:
            raise SetupError(
                f"cannot join the other ranks at {ranks.master_host}:{ranks.master_port}: "
                f"{one_line(error)}"
            ) from None

    def broadcast(self, command: bytes) -> None:
        """Sends a command to all others; called by rank 0 alone."""
        for part in split_message(command):
            with naming_the_cause():
                dist.broadcast(part, 0, group=self._commands)

    def receive(self, timeout_seconds: float | None = None) -> bytes:
        """Waits for rank 0's next command; GroupError: it is gone, or silent for longer."""
        return receive_message(
            lambda part: dist.broadcast(part, 0, group=self._commands, async_op=True),
            timeout_seconds,
        )

    def least(self, values: Sequence[int]) -> list[int]:
        """Returns the least that any rank has given of each value; GroupError if one is gone."""
        tensor = torch.tensor(values, dtype=torch.int64)
        with naming_the_cause():
            dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self._commands)
        return tensor.tolist()

    def wait_for_all(self) -> None:
        """Returns when all ranks have called it; raises GroupError if one is gone."""
        self.least([0])

    def beat(self, *, asks: bool, ends: bool) -> tuple[bool, bool]:
        """Exchanges a sign of life, apart from all else that is said; called by all.

        Returns whether any rank asks for the end, and whether all end; raises GroupError if one is
        gone or silent.
        """
        tensor = torch.tensor([asks, not ends], dtype=torch.uint8)
        with naming_the_cause():
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._pulse)
        asked, lives = tensor.tolist()
        return bool(asked), not lives

    def require_all(self, event: str) -> None:
        """Ends the process unless something happens to all ranks: they would differ after it."""
        keys = [f"{event}/{rank}" for rank in range(self.ranks.world_size)]
        try:
            self.store.set(keys[self.ranks.rank], "")
            self.store.wait(keys, timedelta(seconds=SILENT_SECONDS))
        except RuntimeError as error:
            end_process(f"{event} is not one of all ranks: {one_line(error)}")

    def is_first_to_say(self, text: str) -> bool:
        """Returns whether no other rank has said the same before, or that cannot be known."""
        try:
            return int(self.store.add(f"said/{text}", 1)) == 1
        except RuntimeError:
            return True

    def close(self) -> None:
        """Leaves the others."""
        dist.destroy_process_group()


def _open_store(ranks: Ranks) -> Any:
    """Opens the store by which ranks find each other; rank 0 keeps it, unless torchrun does.

    Rank 0 listens at its own address only; PyTorch by itself would listen at all of them.
    """
    host, port = ranks.master_host, ranks.master_port
    keeps = ranks.is_leader and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    options: dict[str, Any] = {"timeout": timedelta(seconds=JOIN_SECONDS)}
    if keeps:
        options |= {"is_master": True, "wait_for_workers": False}
        options["master_listen_fd"] = _listen(host, port).detach()
    return dist.TCPStore(host, port, **options)  # type: ignore[attr-defined]


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; waits for the name of a pod that was only just started."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            return socket.create_server((host, port))
        except socket.gaierror as error:
            if time.monotonic() > deadline:
                raise SetupError(f"cannot find the address of {host}: {error.strerror}") from None
            time.sleep(1.0)
        except OSError as error:
            raise SetupError(
                f"cannot wait for the other ranks at {host}:{port}: {error.strerror}; choose "
                "another --master-port"
            ) from None


_SECONDS = 0.5
_GRACE_SECONDS = 2.0
"""How long a rank whose neighbour is gone waits to hear that this was meant."""


class Pulse:
    """A thread by which ranks show each other that they live; the process ends with the first.

    A rank that has died is noticed at once, one that hangs or whose machine is gone after
    `group.SILENT_SECONDS`. Ranks other than 0 cannot end by themselves: they ask, and rank 0 ends
    all in good order.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._parent = os.getppid()
        self._asks_to_end = False
        self._ends = threading.Event()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def ask_to_end(self) -> None:
        """Has rank 0 end all ranks, as by a signal."""
        self._asks_to_end = True

    def close(self) -> None:
        """Says that this rank ends; returns when all others do too or are gone."""
        self._ends.set()
        self._thread.join()

    def abandon(self) -> None:
        """Ends without the others, which will notice."""
        self._ends.set()

    def _run(self) -> None:
        try:
            while not self._beat():
                self._ends.wait(_SECONDS)
        except GroupError as error:
            if not self._ends.wait(_GRACE_SECONDS):
                end_process(f"another rank has ended: {error}")

    def _beat(self) -> bool:
        """Exchanges one pulse; returns whether all ranks end."""
        if os.getppid() != self._parent:
            end_process("the process that started this rank has ended")
        asked, ending = self._group.beat(asks=self._asks_to_end, ends=self._ends.is_set())
        serves = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        if asked and self._group.ranks.is_leader and serves and not self._has_ended:
            logger.info("another rank was asked to end")
            self._has_ended = True
            os.kill(os.getpid(), signal.SIGTERM)
        return ending
