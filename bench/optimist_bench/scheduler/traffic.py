"""Made-up requests that come and go, and what a proposer would say about them."""

import numpy as np

from optimist_bench.harness.simulated_worker import SimulatedModel
from optimist_common.drafts import TokenTree
from optimist_scheduler.core.base.values import StepOutputs
from optimist_scheduler.core.requests.request import NewRequest
from optimist_scheduler.core.windows.window import Window

PROMPT_TOKENS = 512
SHARED_PROMPT_TOKENS = 256
"""Beginning of a prompt, which is one of a few."""
NUM_SHARED_PROMPTS = 8
MIN_OUTPUT_TOKENS = 256
MAX_OUTPUT_TOKENS = 1024
WINDOW_TOKENS = 256
"""As many as a proposer sends."""
VALUES = np.power(np.float32(0.9995), np.arange(1, WINDOW_TOKENS + 1, dtype=np.float32))
"""What a proposer says of them."""
FEW_WINDOW_TOKENS = 32
"""With fewer left the next window comes."""


class Traffic:
    """As many requests as run at once; each that ends makes room for another.

    Prompts have 512 tokens, the first 256 one of eight beginnings; outputs have 256 to 1024. The
    expected answer is attached. Where the output leaves it, the next window goes on after the
    token that was another one, as after a substitution.
    """

    def __init__(self, model: SimulatedModel, num_requests: int, seed: int) -> None:
        """Prepares requests with handles 0 to num_requests - 1."""
        self._model = model
        self._random = np.random.default_rng(seed)
        self._shared = [self._draw(SHARED_PROMPT_TOKENS) for _ in range(NUM_SHARED_PROMPTS)]
        positions = PROMPT_TOKENS + np.arange(MAX_OUTPUT_TOKENS)
        self._prediction = model.expected(positions).astype(np.int32)
        self._request_ids = [""] * num_requests
        self._num_output = np.zeros(num_requests, np.int64)
        """Tokens delivered, by handle."""
        self._window_end = np.zeros(num_requests, np.int64)
        self._num_made = 0

    def make_request(self, handle: int) -> NewRequest:
        """Returns a new request for a handle that is not in use.

        The first ones have any length up to the longest, so that they do not end together.
        """
        is_first = self._num_made < len(self._request_ids)
        self._num_made += 1
        shared = self._shared[int(self._random.integers(NUM_SHARED_PROMPTS))]
        shortest = 1 if is_first else MIN_OUTPUT_TOKENS
        request_id = f"request-{self._num_made}"
        self._request_ids[handle] = request_id
        self._num_output[handle] = 0
        return NewRequest(
            request_id,
            shared + self._draw(PROMPT_TOKENS - SHARED_PROMPT_TOKENS),
            int(self._random.integers(shortest, MAX_OUTPUT_TOKENS + 1)),
            predicted_token_ids=self._prediction.tolist(),
            handle=handle,
        )

    def make_window(self, handle: int) -> tuple[str, Window]:
        """Returns a request's id and the window that begins where its output ends."""
        base = int(self._num_output[handle])
        token_ids = self._prediction[base : base + WINDOW_TOKENS]
        self._window_end[handle] = base + len(token_ids)
        positions = np.arange(base, base + len(token_ids), dtype=np.int32)
        window = Window(base, TokenTree(token_ids), positions, VALUES[: len(token_ids)])
        return self._request_ids[handle], window

    def observe(self, outputs: StepOutputs) -> list[int]:
        """Takes the outputs of a step; returns the handles that need a window.

        These are the ones whose output has left the prediction, or will soon have used the window.
        """
        handles, num_tokens = outputs.handles, outputs.num_tokens
        if len(handles) == 0:
            return []
        starts = np.cumsum(num_tokens) - num_tokens
        before = PROMPT_TOKENS + self._num_output[handles]
        positions = np.arange(len(outputs.token_ids)) + np.repeat(before - starts, num_tokens)
        is_other = self._model.expected(positions) != outputs.token_ids
        has_left = np.logical_or.reduceat(is_other, starts)
        self._num_output[handles] += num_tokens
        left = self._window_end[handles] - self._num_output[handles]
        is_short = (left < FEW_WINDOW_TOKENS) & (self._window_end[handles] < MAX_OUTPUT_TOKENS)
        over = {ended.handle for ended in outputs.ended}
        needing: list[int] = handles[has_left | is_short].tolist()
        return [handle for handle in needing if handle not in over]

    def _draw(self, num_tokens: int) -> list[int]:
        token_ids: list[int] = self._random.integers(
            self._model.vocab_size, size=num_tokens
        ).tolist()
        return token_ids
