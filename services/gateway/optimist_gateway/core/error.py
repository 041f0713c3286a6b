"""What goes wrong with a request."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

# An error repeats at most this much of what the client sent.
MAX_MESSAGE_CHARACTERS = 400
MAX_PARAM_CHARACTERS = 100
# When nothing was measured that is a better guess.
RETRY_SECONDS = 1.0
SHUTTING_DOWN = "shutting_down"
FAILED = "the gateway failed; its log says why"

Path = tuple[str | int, ...]
"""Where something is in a request, in a body or in a JSON value: names and indices."""
Names = Mapping[Path, str]
"""What the client calls fields of a request, and with them all below; others keep their names."""


class ApiError(Exception):
    """An error as the client gets it, through whichever API."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        """Describes the error; `status` is HTTP's, if nothing was sent yet.

        The message is cut to a few hundred characters, `param` is the field that is wrong, such as
        `messages[0].content`, `code` a word for programs. When to try again is for 429 and 503.
        """
        super().__init__(message)
        self.status = status
        self.param = printable(param, MAX_PARAM_CHARACTERS) if param else None
        self.code = code
        self.retry_seconds = retry_seconds
        self.message = printable(message, MAX_MESSAGE_CHARACTERS)


class FieldError(ApiError):
    """A field of a request is wrong; clients may know it by another name, see `naming`."""

    def __init__(
        self,
        path: Path,
        fault: str,
        code: str = "invalid_value",
        *,
        is_sentence: bool = False,
        names: Names | None = None,
    ) -> None:
        """Takes where the field is in the `Request`; a sentence needs no name in front."""
        name = field_name(path, names)
        message = fault if is_sentence else f"{name}: {fault}"
        super().__init__(400, message, param=name, code=code)
        self.path, self._given = path, (fault, code, is_sentence)

    def named(self, names: Names) -> ApiError:
        """Returns the error for a client that knows the fields by these names."""
        fault, code, is_sentence = self._given
        return FieldError(self.path, fault, code, is_sentence=is_sentence, names=names)


@contextmanager
def naming(names: Callable[[], Names]) -> Iterator[None]:
    """Raises the FieldErrors of the block in the client's names of the fields."""
    try:
        yield
    except FieldError as error:
        raise error.named(names()) from None


def field_name(path: Path, names: Names | None = None) -> str:
    """Returns what a client calls a field: by the longest part of its path that has a name."""
    for length in range(len(path), 0, -1):
        name = (names or {}).get(path[:length])
        if name is not None:
            return (name + path_text(path[length:])).removeprefix(".")
    return path_text(path).removeprefix(".")


def path_text(path: Path) -> str:
    """Returns a path as it follows the name of what it is in, such as `[0].content`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def shutting_down() -> ApiError:
    """Returns the error for requests that a gateway which ends does not take, or breaks off."""
    return ApiError(503, "this server is shutting down; try again", code=SHUTTING_DOWN)


def printable(text: str, max_characters: int) -> str:
    """Returns a text that can be sent: of bounded length, without halves of surrogate pairs."""
    if len(text) > max_characters:
        text = text[: max_characters - 3] + "..."
    return text.encode("utf-8", "replace").decode("utf-8")
