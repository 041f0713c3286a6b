"""Addresses as host:port; one of IPv6 stands in brackets there, and without them by itself."""

from ipaddress import ip_address


def split_address(address: str) -> tuple[str, int]:
    """Returns host, without brackets, and port of host:port; raises ValueError if it is not."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"must be host:port, with commas between several, not {address!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address stands in brackets, as [::1]:50051, not {address!r}")
    return host, int(port)


def join_address(host: str, port: int | str) -> str:
    """Returns host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Returns whether an address is of this machine alone; names other than localhost are not."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
