"""Reads what outputs may repeat, on a thread beside the passes."""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from weakref import WeakValueDictionary

from optimist_aligner import INT32, Algorithm, Reference, Sources
from optimist_vllm.core.payload import Attached
from optimist_vllm.core.prediction import check_num_tokens, read_prediction

MAX_PROMPT_TOKENS = 131_072
"""Of the end of a prompt, which is what is read of it."""
MAX_BYTES = 1 << 30
"""Memory of all references together, roughly."""


@dataclass(frozen=True)
class Prepared:
    """What a request may repeat."""

    reference: Reference
    sources: Sources
    num_predicted: int
    """Tokens of it that are predicted."""


class Preparation:
    """Makes references; requests with equal sources share one."""

    def __init__(
        self, algorithm: Algorithm, encode: Callable[[str], Sequence[int]], executor: Executor
    ) -> None:
        """Sets up.

        Args:
            algorithm: Makes references.
            encode: The tokenizer, called on the executor's thread alone.
            executor: Has one thread.
        """
        self._algorithm, self._encode, self._executor = algorithm, encode, executor
        # Not of references, which have no weak ones where the aligner is compiled.
        self._prepared: WeakValueDictionary[bytes, Prepared] = WeakValueDictionary()

    def begin(self, attached: Attached, prompt_token_ids: Sequence[int]) -> "Future[Prepared]":
        """Begins to read a request.

        Args:
            attached: Its predictions.
            prompt_token_ids: Its prompt [num_tokens].

        Returns:
            The future result. Its errors are a ValueError, if the prediction is none, and a
            MemoryError, if there is no room.
        """
        prompt = array(INT32, prompt_token_ids[-MAX_PROMPT_TOKENS:])
        return self._executor.submit(self._prepare, attached, prompt)

    def _prepare(self, attached: Attached, prompt: "array[int]") -> Prepared:
        predictions = attached.predictions
        if attached.text is not None:
            texts = read_prediction(attached.text)
            predictions = [array(INT32, self._encode(text)) for text in texts]
        check_num_tokens(predictions)
        digest = hashlib.blake2b(digest_size=16)
        for each in (prompt, *predictions):
            digest.update(len(each).to_bytes(8, "little"))
            digest.update(each)
        key = digest.digest()
        prepared = self._prepared.get(key)
        if prepared is None:
            known = list(self._prepared.values())
            if sum(each.reference.num_bytes for each in known) > MAX_BYTES:
                raise MemoryError("predictions and prompts in progress take too much memory")
            sources = Sources(predictions, prompt)
            reference = self._algorithm.prepare(sources)
            prepared = Prepared(reference, sources, sum(map(len, predictions)))
            self._prepared[key] = prepared
        return prepared
