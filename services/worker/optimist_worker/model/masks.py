"""Which tokens the grammars of a step's rows allow after each of their drafts."""

import torch

from optimist_worker.core.drafts import Drafts
from optimist_worker.core.plan import Admission
from optimist_worker.core.ragged import Ragged
from optimist_worker.model.grammar import GrammarRow, GrammarSet, load_grammar_set
from optimist_worker.model.model import Model


def unpack_bitmask(packed: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Turns bits into booleans on the device of the bits.

    Args:
        packed: int32 `[num_nodes, ceil(vocab_size / 32)]`, bit i of word w for token 32 * w + i.
        vocab_size: Number of tokens.

    Returns:
        bool `[num_nodes, vocab_size]`.
    """
    bits = torch.arange(32, dtype=torch.int32, device=packed.device)
    unpacked = (packed[:, :, None] >> bits) & 1
    return unpacked.reshape(packed.shape[0], -1)[:, :vocab_size].bool()


class Masks:
    """The grammars of all slots.

    They are followed on the host, so a step with one is waited for before the next is started.
    """

    def __init__(self, name: str, model: Model) -> None:
        """Sets up without any grammar; the tokenizer is read when the first one comes.

        Args:
            name: Directory of the model.
            model: The model.
        """
        self._name, self._model = name, model
        self._grammars: GrammarSet | None = None
        self._slots: set[int] = set()

    def open(self, admission: Admission) -> str | None:
        """Starts the grammar of a request; returns what is wrong with it, or None."""
        slot = admission.slot
        output = admission.token_ids[admission.num_prompt_tokens :]
        try:
            if self._grammars is None:
                model = self._model
                self._grammars = load_grammar_set(self._name, model.vocab_size, model.eos_token_ids)
            self._grammars.open(slot, admission.sampling.grammar, output)
        except ValueError as error:
            return str(error)
        self._slots.add(slot)
        return None

    def close(self, slot: int) -> None:
        """Forgets a slot's grammar, if it has one."""
        self._slots.discard(slot)
        if self._grammars is not None:
            self._grammars.close(slot)

    def commit(self, slot: int, token_ids: list[int]) -> str | None:
        """Moves a slot's grammar on by what was emitted; returns why it cannot, or None."""
        if self._grammars is None or slot not in self._slots:
            return None
        self._grammars.commit(slot, token_ids)
        fault = self._grammars.fault(slot)
        return None if fault is None else f"grammar: {fault}"

    def allowed(self, slots: torch.Tensor, drafts: Drafts, nodes: Ragged) -> torch.Tensor | None:
        """Returns what may come after each node, bool `[num_logits, vocab_size]`; None: all."""
        if self._grammars is None or not self._slots:
            return None
        rows, places = self._find_rows(slots, drafts, nodes)
        if not rows:
            return None
        device, vocab_size = slots.device, self._model.vocab_size
        masks = unpack_bitmask(self._grammars.allowed(rows).to(device), vocab_size)
        allowed = torch.ones((nodes.size, vocab_size), dtype=torch.bool, device=device)
        return allowed.index_copy_(0, torch.tensor(places, device=device), masks)

    def _find_rows(
        self, slots: torch.Tensor, drafts: Drafts, nodes: Ragged
    ) -> tuple[list[GrammarRow], list[int]]:
        """Returns the rows with a grammar that emit, and which rows of logits are theirs."""
        rows: list[GrammarRow] = []
        places: list[int] = []
        starts: list[int] = nodes.starts.tolist()
        for index, slot in enumerate(slots.tolist()):
            first, end = starts[index], starts[index + 1]
            if slot not in self._slots or first == end:
                continue
            number = end - first - 1
            parents = None
            if drafts.parents is not None:
                parents = drafts.parents[index, :number].tolist()
            rows.append(GrammarRow(slot, drafts.token_ids[index, :number].tolist(), parents))
            places += range(first, end)
        return rows, places
