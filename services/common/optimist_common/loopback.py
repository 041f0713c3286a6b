"""Which addresses only this machine reaches."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Tells whether an address is of this machine alone; names other than localhost are not."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
