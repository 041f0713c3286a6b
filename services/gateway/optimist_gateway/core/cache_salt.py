"""Whose requests share cached prompts and predictions."""

import hashlib


def cache_salt(client: str, asked: str | None) -> str:
    """Returns the salt of a request: equal ones share what is cached.

    A client with a key shares with itself alone, whatever salt it asks for, so that none can find
    out by its times what others have sent.

    Args:
        client: Name of the client; empty if no keys are asked for.
        asked: The request's own salt; None for none.
    """
    if not client:
        return asked or ""
    return hashlib.sha256(f"{client}\0{asked or ''}".encode()).hexdigest()
