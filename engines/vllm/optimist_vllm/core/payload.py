"""What travels between the front end and the scheduler, in fields of vLLM that hold anything."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from optimist_aligner import INT32

PAYLOAD = "optimist"
"""Key of the payload in `extra_args`, and of the report in `kv_transfer_params`."""
TEXT = "prediction"
"""Key of a prediction that the front end has not tokenized, in `extra_args`."""


@dataclass(frozen=True, slots=True, repr=False)
class Payload:
    """The predictions of a request; vLLM logs it as how many tokens they have."""

    key: int | None
    """Which account of the front end the request belongs to; None for none."""
    predictions: list[bytes]
    """Token ids of each, int32."""
    max_drafts: int | None = None
    """Most drafts of a pass; None for the server's limit."""
    num_delivered: int = 0
    """Tokens at the prompt's end that are output: an earlier run of the request delivered them."""

    @classmethod
    def of(cls, key: int, predictions: Sequence[Sequence[int]]) -> "Payload":
        """Packs tokens [num_predictions][num_tokens]."""
        return cls(key, [array(INT32, each).tobytes() for each in predictions])

    def __repr__(self) -> str:
        return f"<prediction of {sum(map(len, self.predictions)) // 4} tokens>"


class Attached(NamedTuple):
    """What came with a request."""

    key: int | None
    """See `Payload`; None if the front end keeps no account."""
    predictions: "list[array[int]]"
    text: object
    """A prediction that is not tokenized yet, as the client gave it; None for none."""
    max_drafts: int | None = None
    """See `Payload`."""
    num_delivered: int = 0
    """See `Payload`."""


def take_attached(
    extra_args: Mapping[str, Any] | None,
) -> tuple[Attached, dict[str, Any] | None]:
    """Returns what came with a request, and `extra_args` without it."""
    rest = dict(extra_args or {})
    payload, text = rest.pop(PAYLOAD, None), rest.pop(TEXT, None)
    if isinstance(payload, dict):
        # As it comes from another process.
        payload = Payload(**payload)
    if not isinstance(payload, Payload):
        return Attached(None, [], text), rest or None
    predictions = [array(INT32, each) for each in payload.predictions]
    attached = Attached(payload.key, predictions, text, payload.max_drafts, payload.num_delivered)
    return attached, rest or None


class Report(NamedTuple):
    """What became of the drafts of a request, with each of its outputs; a list on the way."""

    key: int | None
    """See `Payload`."""
    num_accepted: int
    """Predicted tokens among the output so far."""
    num_rejected: int
    """Positions of the predictions that were drafted so far and never kept."""
    positions: list[int]
    """Where the accepted drafts that this output begins with were read from, as `Sources.positions`
    of the aligner says; negative outside the predictions."""
    num_drafted: int
    """Drafts that were verified so far."""
    draft_ns: int
    """Nanoseconds that drafting took since the report before."""

    def count_accepted(self, num_delivered: int) -> int:
        """Returns `num_accepted` if only so many tokens of this output reach the client."""
        return self.num_accepted - sum(each >= 0 for each in self.positions[num_delivered:])
