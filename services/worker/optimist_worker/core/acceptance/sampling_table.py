"""The sampling parameters of all slots as columns, and what the host knows of them."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from optimist_common.sampling import SamplingParams
from optimist_worker.core.transfers import Writes, send


class SamplingColumns(NamedTuple):
    """Parameters of some slots, `[n]` each. What a request does without is set to do nothing."""

    temperature: Tensor
    """Float64; 1 for greedy requests."""
    top_p: Tensor
    """Float64; infinite if nothing is cut."""
    log_min_p: Tensor
    """Float64; -inf if nothing is cut."""
    repetition_penalty: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    top_k: Tensor
    """Int64; the vocabulary's size if nothing is cut."""
    seed: Tensor
    """Int64."""
    samples: Tensor
    """Bool: temperature above 0."""
    takes_argmax: Tensor
    """Bool: the token is the one with the largest logit of the model."""


class Needs(NamedTuple):
    """What some rows need at all, known to the host: it decides what a step runs."""

    processes: bool
    """Whether any token is not simply the one with the largest logit."""
    samples: bool
    penalizes: bool
    biases: bool
    cut_width: int
    """How many of the most likely tokens top-k and top-p have to look at, 0 if nothing is cut."""
    cuts_top_p: bool
    cuts_min_p: bool

    def widened(self, vocab_size: int) -> "Needs":
        """Returns needs of one of few kinds that have all of these: greedy, or sampled with cuts.

        The kernel that chooses tokens is no slower for cuts that no row has; plain PyTorch is.
        Penalties count tokens, and are as they are, like bias.
        """
        if not self.processes:
            return self
        return self._replace(samples=True, cut_width=vocab_size, cuts_top_p=True, cuts_min_p=True)


class SamplingTable:
    """One row per slot and one more, which padding names and which is greedy."""

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        device: torch.device,
        writes: Writes | None = None,
    ) -> None:
        """Makes a table of greedy slots; row `num_slots` is the one for padding.

        Parameters that are set take effect when `writes` are flushed.
        """
        self.vocab_size, self.device = vocab_size, device
        num_rows = num_slots + 1
        self.writes = writes or Writes(device)
        reals, integers = _columns(SamplingParams(), vocab_size)
        self.reals = torch.tensor(reals, dtype=torch.float64, device=device)[:, None].repeat(
            1, num_rows
        )
        self.integers = torch.tensor(integers, device=device)[:, None].repeat(1, num_rows)
        """Columns of each slot: those of `SamplingColumns`, first all of float64."""
        self._needs = np.zeros((num_rows, len(Needs._fields)), dtype=np.int64)
        self._bias: Tensor | None = None
        """Float32 `[num_slots + 1, vocab_size]`, from the first request with a bias on."""

    def set(self, slot: int, params: SamplingParams) -> None:
        """Sets a slot's parameters, which have no fault."""
        reals, integers = _columns(params, self.vocab_size)
        self.writes.put(self.reals[:, slot], reals)
        self.writes.put(self.integers[:, slot], integers)
        if self._needs[slot, Needs._fields.index("biases")] and self._bias is not None:
            self._bias[slot] = 0.0
        if params.logit_bias:
            self._set_bias(slot, params.logit_bias)
        self._needs[slot] = _needs(params, self.vocab_size)

    def gather(self, slots: Tensor) -> SamplingColumns:
        """Returns the columns of some slots, int64 `[n]`."""
        integers = self.integers.index_select(1, slots)
        return SamplingColumns(
            *self.reals.index_select(1, slots), *integers[:2], *integers[2:].bool()
        )

    def bias(self, slots: Tensor) -> Tensor:
        """Returns what is added to the logits of some slots, float32 `[n, vocab_size]`."""
        if self._bias is None:
            return torch.zeros((len(slots), self.vocab_size), device=self.device)
        return self._bias.index_select(0, slots)

    def needs(self, slots: list[int] | npt.NDArray[np.integer]) -> Needs:
        """Returns what the slots of a step need together."""
        chosen = self._needs[np.asarray(slots, dtype=np.int64)]
        most = chosen.max(0, initial=0).tolist()
        return Needs(
            *(
                value if name == "cut_width" else bool(value)
                for name, value in zip(Needs._fields, most, strict=True)
            )
        )

    def _set_bias(self, slot: int, bias: dict[int, float]) -> None:
        if self._bias is None:
            shape = (self.reals.shape[1], self.vocab_size)
            self._bias = torch.zeros(shape, device=self.device)
        token_ids = send(torch.tensor(list(bias)), self.device)
        values = send(torch.tensor(list(bias.values()), dtype=torch.float32), self.device)
        self._bias[slot].index_copy_(0, token_ids, values)


def _columns(params: SamplingParams, vocab_size: int) -> tuple[list[float], list[int]]:
    """Returns a request's columns; at temperature 0 nothing is scaled or cut."""
    samples = params.temperature > 0.0
    reals = [
        params.temperature if samples else 1.0,
        params.top_p if samples and params.top_p < 1.0 else math.inf,
        math.log(params.min_p) if samples and params.min_p > 0.0 else -math.inf,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
    ]
    top_k = params.top_k if samples and 0 < params.top_k < vocab_size else vocab_size
    return reals, [top_k, params.seed, int(samples), int(params.takes_argmax)]


def _needs(params: SamplingParams, vocab_size: int) -> list[int]:
    samples = params.temperature > 0.0
    cuts_top_p = samples and params.top_p < 1.0
    cut_width = vocab_size if cuts_top_p else 0
    if samples and 0 < params.top_k < vocab_size:
        cut_width = params.top_k
    needs = Needs(
        processes=not params.takes_argmax,
        samples=samples,
        penalizes=params.penalizes,
        biases=bool(params.logit_bias),
        cut_width=cut_width,
        cuts_top_p=cuts_top_p,
        cuts_min_p=samples and params.min_p > 0.0,
    )
    return [int(need) for need in needs]
