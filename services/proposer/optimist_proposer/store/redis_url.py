"""Redis by URL: alone, behind Sentinels, or as a cluster."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

SCHEMES = (
    "redis://",
    "rediss://",
    "unix://",
    "redis+sentinel://",
    "rediss+sentinel://",
    "redis+cluster://",
    "rediss+cluster://",
)
"""How a URL may begin; `rediss` speaks TLS."""

_SENTINEL_PORT = 26379
_REDIS_PORT = 6379
# Keys of a cluster lie in so many slots, so that a batch takes so many script calls at most.
_CLUSTER_SHARDS = 16


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """A client that connects when it is first used."""

    client: "Redis | RedisCluster"
    num_shards: int = 1
    """Hash tags over which keys are spread, because one script call may touch one slot only."""
    sentinel: Sentinel | None = None
    """Who names the master, if Sentinels do."""

    async def disconnect(self) -> None:
        """Closes all connections; they are opened again by the next use."""
        await self.client.aclose()
        if self.sentinel is not None:
            await self.sentinel.aclose()


def open_redis(url: str, timeout_seconds: float) -> RedisTarget:
    """Makes the client for a URL.

    - `redis://[user:password@]host[:port][/db]`, `rediss://`, `unix://path`: one Redis.
    - `redis+sentinel://[user:password@]host[:port],.../service[/db]`: the master that Sentinels
      name; `?sentinel_username=...&sentinel_password=...` are for the Sentinels themselves.
    - `redis+cluster://[user:password@]host[:port],...`: a cluster, by some of its nodes.

    A connection or an answer is waited for so long at most, and nothing is tried twice. Raises
    ValueError for a URL that is none of these.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "retry": Retry(NoBackoff(), 0),
    }
    scheme = url.partition("://")[0]
    if not url.startswith(SCHEMES):
        raise ValueError(f"no Redis URL begins with {scheme}://")
    if "+" not in scheme:
        return RedisTarget(Redis.from_url(url, **options))
    if scheme.startswith("rediss"):
        options["ssl"] = True
    parts = urlsplit(url)
    username, _, password = parts.netloc.rpartition("@")[0].partition(":")
    options |= {"username": unquote(username) or None, "password": unquote(password) or None}
    path = [part for part in parts.path.split("/") if part]
    if scheme.endswith("sentinel"):
        return _sentinel(parts.netloc, path, parts.query, options)
    if path or parts.query:
        raise ValueError("a cluster's URL ends after its hosts")
    nodes = [ClusterNode(host, port) for host, port in _hosts(parts.netloc, _REDIS_PORT)]
    return RedisTarget(RedisCluster(startup_nodes=nodes, **options), _CLUSTER_SHARDS)


def _sentinel(netloc: str, path: list[str], query: str, options: dict[str, Any]) -> RedisTarget:
    if not 1 <= len(path) <= 2:
        raise ValueError("a Sentinel's URL is redis+sentinel://host:port,.../service/db")
    service, database = path[0], _number(path[1] if len(path) == 2 else "0", "database")
    own = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout", "retry")}
    for name, values in parse_qs(query, keep_blank_values=True).items():
        if name not in ("sentinel_username", "sentinel_password"):
            raise ValueError(f"a Sentinel's URL has no option {name}")
        own[name.removeprefix("sentinel_")] = values[-1]
    if "ssl" in options:
        own["ssl"] = True
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        _hosts(netloc, _SENTINEL_PORT), sentinel_kwargs=own
    )
    return RedisTarget(sentinel.master_for(service, db=database, **options), sentinel=sentinel)


def _hosts(netloc: str, default_port: int) -> list[tuple[str, int]]:
    hosts: list[tuple[str, int]] = []
    for part in netloc.rpartition("@")[2].split(","):
        host, colon, port = part.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = part, str(default_port)
        if not host:
            raise ValueError(f"no host in {part!r}")
        hosts.append((host.strip("[]"), _number(port, "port")))
    return hosts


def _number(text: str, name: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"no {name}: {text!r}")
    return int(text)
