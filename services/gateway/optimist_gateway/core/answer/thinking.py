"""What a model thinks before it answers: how that is marked, and where it ends."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from optimist_gateway.core.answer.detokenize import find_marker

SPACES = " \n\r\t"


@dataclass(frozen=True)
class ThinkingFormat:
    """What is around the thoughts in an answer."""

    opening: str
    closing: str
    between: str = "\n\n"
    """What usually follows before the answer proper."""
    is_usual: bool = True
    """Whether a model that may think does."""

    @property
    def tags(self) -> tuple[str, str]:
        """Both of them."""
        return self.opening, self.closing


FORMATS = (
    ThinkingFormat("<think>", "</think>"),
    ThinkingFormat("<seed:think>", "</seed:think>", ""),
    ThinkingFormat("[THINK]", "[/THINK]", ""),
    ThinkingFormat("◁think▷", "◁/think▷", ""),
    ThinkingFormat("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>"),
    ThinkingFormat("<|inner_prefix|>", "<|inner_suffix|>", ""),
    ThinkingFormat("<thought>", "</thought>"),
    ThinkingFormat("<thinking>", "</thinking>"),
    ThinkingFormat("<reasoning>", "</reasoning>"),
)


def thinking_format(chat_template: str, added_tokens: Collection[str]) -> ThinkingFormat | None:
    """Returns the first of `FORMATS` whose closing tag a chat template has; None: no thoughts.

    Of others, it is the first one that a vocabulary has tokens for, which not all such models use.
    """
    in_template = (one for one in FORMATS if one.closing in chat_template)
    in_tokens = (one for one in FORMATS if {*one.tags} <= {*added_tokens})
    found = (replace(one, is_usual=False) for one in in_tokens)
    return next(in_template, None) or next(found, None)


class _Place(Enum):
    """Where in an answer one is."""

    BEFORE = auto()
    """At its beginning: the model may begin to think."""
    OPENED = auto()
    """Where thoughts begin."""
    WITHIN = auto()
    CLOSED = auto()
    """Behind them, before the first character of the answer proper."""
    CONTENT = auto()


@dataclass(slots=True, eq=False)
class ThinkingReader:
    """Separates thoughts from the rest of an answer.

    However the text is cut into pieces, what comes out joins to the same. Thoughts are at the
    beginning, or there are none. White space around them, and the tags, belong to neither.
    """

    form: ThinkingFormat
    _place: _Place = _Place.BEFORE
    _buffer: str = field(init=False, default="")
    _spaces: str = field(init=False, default="")
    """White space at the end of the thoughts so far, which is dropped if they end with it."""

    @property
    def is_inside(self) -> bool:
        """Whether more text would be a thought."""
        return self._place in (_Place.OPENED, _Place.WITHIN)

    @property
    def has_ended(self) -> bool:
        """Whether any text that comes now is of the answer proper."""
        return self._place is _Place.CONTENT

    def push(self, text: str, *, is_last: bool = False) -> tuple[str, str]:
        """Adds a piece of text.

        Returns what is certain now of the thoughts and of the answer proper; what was held back
        too, if no more text will come.
        """
        self._buffer += text
        if self._place in (_Place.BEFORE, _Place.OPENED):
            self._begin()
        thought = self._think() if self._place is _Place.WITHIN else ""
        content = self._rest() if self._place in (_Place.CLOSED, _Place.CONTENT) else ""
        if not is_last:
            return thought, content
        held, self._spaces, self._buffer = self._spaces + self._buffer, "", ""
        if self._place is _Place.OPENED:
            held = held.lstrip(SPACES)
        return (thought + held, content) if self.is_inside else (thought, content + held)

    def _begin(self) -> None:
        """Drops the opening tag, also if some models repeat it, and white space."""
        opening = self.form.opening
        while (shown := self._buffer.lstrip(SPACES)).startswith(opening):
            self._buffer = shown.removeprefix(opening)
            self._place = _Place.OPENED
        if opening.startswith(shown):
            # There is only what could go on to be the tag.
            return
        if self._place is _Place.OPENED:
            self._buffer, self._place = shown, _Place.WITHIN
        else:
            self._place = _Place.CONTENT

    def _think(self) -> str:
        closing = self.form.closing
        end, is_closed = find_marker(self._buffer, closing)
        text = self._spaces + self._buffer[:end]
        shown = text.rstrip(SPACES)
        self._buffer, self._spaces = self._buffer[end:], text[len(shown) :]
        if is_closed:
            self._buffer, self._spaces = self._buffer.removeprefix(closing), ""
            self._place = _Place.CLOSED
        return shown

    def _rest(self) -> str:
        text, self._buffer = self._buffer, ""
        if self._place is _Place.CLOSED:
            text = text.lstrip(SPACES)
            if text:
                self._place = _Place.CONTENT
        return text


def begin_thinking(form: ThinkingFormat, prompt: str, prefill: str = "") -> ThinkingReader | None:
    """Returns what reads the answer to a prompt; None if there are no thoughts to tell apart.

    The prompt may end with the opening tag, so that the answer begins within thoughts, or with the
    closing one, if the model is not to think; or with a prefill, which the answer goes on.
    """
    before = prompt.removesuffix(prefill).rstrip(SPACES)
    is_open = before.endswith(form.opening)
    reader = ThinkingReader(form, _Place.OPENED if is_open else _Place.BEFORE)
    reader.push(prefill)
    may_think = reader._place is _Place.BEFORE and not before.endswith(form.closing)
    # What was held back of the prefill is not said again.
    return ThinkingReader(form, reader._place) if reader.is_inside or may_think else None
