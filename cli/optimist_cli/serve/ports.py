"""Ports of this machine for services that are started together."""

import itertools
import random
from collections.abc import Collection

from optimist_common.errors import SetupError
from optimist_common.network.server import require_free

# Below those that systems give to clients: a service that is started again finds its port free.
_PORTS = range(10_000, 15_000)
# Other processes most likely begin elsewhere, so that two do not find the same port before either
# uses it.
_turns = itertools.count(random.SystemRandom().randrange(len(_PORTS)))


def free_ports(number: int, but: Collection[str] = ()) -> list[int]:
    """Returns ports of the loopback that nobody listens on, and that this process had not lately.

    Args:
        number: How many.
        but: Ports that somebody is about to listen on.

    Raises:
        SetupError: There are not so many.
    """
    candidates = (_PORTS[turn % len(_PORTS)] for turn in itertools.islice(_turns, len(_PORTS)))
    left = (port for port in candidates if str(port) not in but and _is_free(port))
    ports = list(itertools.islice(left, number))
    if len(ports) < number:
        raise SetupError(f"no {number} ports are free from {_PORTS.start} to {_PORTS.stop - 1}")
    return ports


def _is_free(port: int) -> bool:
    try:
        require_free("127.0.0.1", port)
    except SetupError:
        return False
    return True
