"""The page's files, read once: what is not among them cannot be asked for."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """One file as it is sent."""

    content: bytes
    content_type: str
    etag: str
    """Changes with the content; quoted, as in the header."""


def load_page_files(folder: Path = STATIC) -> dict[str, PageFile]:
    """Returns what browsers are sent, by path below the folder; licences and notes stay unsent."""
    return {
        path.relative_to(folder).as_posix(): _page_file(path)
        for path in sorted(folder.rglob("*"))
        if path.suffix in _CONTENT_TYPES
    }


def _page_file(path: Path) -> PageFile:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:32]
    return PageFile(content, _CONTENT_TYPES[path.suffix], f'"{digest}"')
