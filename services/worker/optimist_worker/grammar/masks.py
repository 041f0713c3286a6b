"""Grammars that outputs follow, one matcher of llguidance per slot, and the masks of a step."""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from llguidance import LLMatcher, LLTokenizer

from optimist_common.drafts import DraftSource
from optimist_common.errors import SetupError, one_line
from optimist_common.grammar import matching_tokenizer
from optimist_common.model_files.tokenizer import load_tokenizer
from optimist_common.sampling import MAX_GRAMMAR_BYTES
from optimist_worker.core.batch.flat_batch import MOST_TREE_NODES
from optimist_worker.core.drafts import Drafts, Ragged, chain_parents
from optimist_worker.core.form import Style
from optimist_worker.core.plan import Admission
from optimist_worker.core.transfers import receive, send
from optimist_worker.grammar.draft_tree import FormDraft, GrammarRow
from optimist_worker.grammar.matcher import Matcher, compile_grammar
from optimist_worker.model.model import Model

_MAX_KEPT = 2**20
"""Characters of grammars that are kept compiled, as choices and the turns of a conversation have
the same one; 350,000 take some 20 MB."""


def unpack_bitmask(packed: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Turns bits, see `Masks.pack`, into bool `[num_nodes, vocab_size]` on their device."""
    bits = torch.arange(32, dtype=torch.int32, device=packed.device)
    unpacked = (packed[:, :, None] >> bits) & 1
    return unpacked.reshape(packed.shape[0], -1)[:, :vocab_size].bool()


class GrammarStep:
    """What the host has to know of a step to work its masks out.

    It is on its way before the pass begins, so that the masks are worked out during the pass.
    """

    def __init__(self, slots: torch.Tensor, drafts: Drafts, nodes: Ragged) -> None:
        """Starts to copy to the host; which logits are after which `nodes` says `VerifyPass`."""
        self.num_logits = nodes.size
        tensors = [slots, nodes.starts, drafts.token_ids]
        if drafts.parents is not None:
            tensors.append(drafts.parents)
        self._copies = [receive(tensor) for tensor in tensors]
        self._is_there: torch.cuda.Event | None = None
        if slots.is_cuda:
            self._is_there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._is_there.record()

    def find_rows(self, slots_with_one: Container[int]) -> tuple[list[GrammarRow], list[int]]:
        """Returns the rows with a grammar that emit, and which rows of logits are theirs."""
        if self._is_there is not None:
            self._is_there.synchronize()
        slots, starts, token_ids, *parents = (copy.tolist() for copy in self._copies)
        rows: list[GrammarRow] = []
        indices: list[int] = []
        for index, slot in enumerate(slots):
            number = starts[index + 1] - starts[index] - 1
            if slot in slots_with_one and number >= 0:
                chosen = parents[0][index][:number] if parents else None
                rows.append(GrammarRow(slot, token_ids[index][:number], chosen))
                indices += range(starts[index], starts[index + 1])
        return rows, indices


class FormDrafts(NamedTuple):
    """Drafts of all rows of a step with those that grammars bring."""

    drafts: Drafts
    base: torch.Tensor
    """Which of the row's own drafts each node is, -1 for none, int64 `[num_rows, width]`."""


class Masks:
    """The grammars of all slots. Not thread-safe.

    They are followed on the host, so a step with one is waited for before the next is started.
    """

    def __init__(self, name: str, model: Model) -> None:
        """Sets up without any grammar; the tokenizer in a directory is read when one comes.

        Ids that it does not have are refused; end tokens are allowed where a grammar may end.
        """
        self._name, self._model = name, model
        self._tokenizer: LLTokenizer | None = None
        self._end_only = np.zeros(-(-model.vocab_size // 32) * 4, np.uint8)
        for token_id in model.eos_token_ids:
            self._end_only[token_id // 8] |= 1 << token_id % 8
        self._matchers: dict[int, Matcher] = {}
        self._style = Style()
        """That of the output that ended last: the next one probably writes like it."""
        self._compiled: dict[str, LLMatcher] = {}
        """By their grammars, those used last at the end."""

    def open(self, admission: Admission) -> str | None:
        """Starts the grammar of a request; returns what is wrong with it, or None."""
        token_ids, number = admission.token_ids, admission.num_prompt_tokens
        prompt, output = (list(map(int, part)) for part in (token_ids[:number], token_ids[number:]))
        try:
            self.start(admission.slot, admission.sampling.grammar, output, prompt)
        except ValueError as error:
            return str(error)
        return None

    def start(
        self, slot: int, grammar: str, token_ids: Sequence[int] = (), prompt: Sequence[int] = ()
    ) -> None:
        """Starts a slot's grammar in place of any before; `token_ids` are the output so far.

        From the prompt's tokens values may be drafted.

        Raises ValueError if the grammar, in llguidance's dialect of Lark, is wrong, too large or
        too complex, matches nothing, or is not what the output follows; or if the model has no
        sound tokenizer or no end token.
        """
        self._matchers.pop(slot, None)
        size = len(grammar.encode("utf-8", "surrogatepass"))
        if size > MAX_GRAMMAR_BYTES:
            raise ValueError(f"grammar must be at most {MAX_GRAMMAR_BYTES} bytes, not {size}")
        try:
            tokenizer = self._tokenizer = self._tokenizer or self._load()
            compiled = self._compiled.pop(grammar, None) or compile_grammar(tokenizer, grammar)
            self._compiled[grammar] = compiled
            while len(self._compiled) > 1 and sum(map(len, self._compiled)) > _MAX_KEPT:
                del self._compiled[next(iter(self._compiled))]
            matcher = Matcher(
                tokenizer, grammar, compiled, self._end_only, token_ids, self._style, prompt
            )
        except UnicodeEncodeError:
            raise ValueError("grammar is not valid Unicode") from None
        except (SetupError, ValueError) as error:
            raise ValueError(f"grammar: {one_line(error).removeprefix('grammar: ')}") from None
        self._matchers[slot] = matcher

    def _load(self) -> LLTokenizer:
        tokenizer = load_tokenizer(self._name, "grammar").backend_tokenizer
        # Limits that were set for training.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        model = self._model
        return matching_tokenizer(tokenizer.to_str(), model.vocab_size, list(model.eos_token_ids))

    def close(self, slot: int) -> None:
        """Forgets a slot's grammar, if it has one."""
        if (matcher := self._matchers.pop(slot, None)) is not None:
            self._style = matcher.style

    def commit(self, slot: int, token_ids: Sequence[int]) -> str | None:
        """Moves a slot's grammar on by what was emitted; returns its fault, if it has one."""
        if slot in self._matchers:
            self._matchers[slot].commit(token_ids)
        return self.fault(slot)

    def fault(self, slot: int) -> str | None:
        """Returns why a slot's grammar can be followed no further, or None.

        A grammar that compiled may still meet a limit later. From then on nothing is allowed.
        """
        matcher = self._matchers.get(slot)
        if matcher is None or matcher.fault is None:
            return None
        return f"grammar: {matcher.fault}"

    def withhold(self, slots: torch.Tensor, limits: torch.Tensor, number: int) -> torch.Tensor:
        """Returns how many drafts rows may have that are not from their grammars, `[num_rows]`.

        Rows with a grammar keep `number` of their `limits` for that.
        """
        kept = torch.tensor([number * (slot in self._matchers) for slot in slots.tolist()])
        return (limits - send(kept, limits.device)).clamp(min=0)

    def draft(
        self, slots: torch.Tensor, drafts: Drafts, limits: torch.Tensor, least_chance: float
    ) -> FormDrafts | None:
        """Returns the drafts of rows, those with a grammar by what that says, see `Matcher.draft`.

        Rows have at most `limits` drafts, `[num_rows]`. None: the drafts stay as they are.
        """
        rows = [
            (index, slot, limit)
            for index, (slot, limit) in enumerate(zip(slots.tolist(), limits.tolist(), strict=True))
            if slot in self._matchers and limit > 0
        ]
        if not rows:
            return None
        token_ids, numbers = drafts.token_ids.tolist(), drafts.num_tokens.tolist()
        parents = None if drafts.parents is None else drafts.parents.tolist()
        grown: dict[int, list[FormDraft]] = {}
        for index, slot, limit in rows:
            number = numbers[index]
            above = None if parents is None else parents[index][:number]
            row = GrammarRow(slot, token_ids[index][:number], above)
            drafted = self._matchers[slot].draft(row, limit, least_chance)
            is_tree = any(one.parent != node - 1 for node, one in enumerate(drafted))
            grown[index] = drafted[:MOST_TREE_NODES] if is_tree else drafted
        return _grow(drafts, grown)

    def allowed(self, step: GrammarStep) -> torch.Tensor | None:
        """Returns what may come after each node, bool `[num_logits, vocab_size]`; None: all."""
        rows, indices = step.find_rows(self._matchers)
        if not rows:
            return None
        device, vocab_size = self._model.device, self._model.vocab_size
        masks = unpack_bitmask(send(self.pack(rows), device), vocab_size)
        allowed = torch.ones((step.num_logits, vocab_size), dtype=torch.bool, device=device)
        return allowed.index_copy_(0, send(torch.tensor(indices), device), masks)

    def pack(self, rows: Sequence[GrammarRow]) -> torch.Tensor:
        """Works out which tokens may come after the last known token and after each draft.

        After a draft that its grammar refuses nothing is: its parent's mask excludes it. Nor is
        where the grammar meets a limit, see `Matcher.fill`. No grammar is moved on.

        Returns int32 `[num_nodes, ceil(vocab_size / 32)]`, bit i of word w for token 32 * w + i; of
        each row in turn the last known token and then its drafts.
        """
        num_nodes = sum(1 + len(row.token_ids) for row in rows)
        masks = np.zeros((num_nodes, len(self._end_only)), np.uint8)
        start = 0
        for row in rows:
            end = start + 1 + len(row.token_ids)
            self._matchers[row.slot].fill(row, masks[start:end])
            start = end
        return torch.from_numpy(masks.view(np.int32))


def _grow(drafts: Drafts, grown: Mapping[int, Sequence[FormDraft]]) -> FormDrafts | None:
    """Puts other drafts in the place of some rows'; None if they are the same."""
    bases = {index: [draft.base for draft in row] for index, row in grown.items()}
    numbers = drafts.num_tokens.tolist()
    if all(base == [*range(numbers[index])] for index, base in bases.items()):
        return None
    device, width = drafts.token_ids.device, max(drafts.width, *map(len, bases.values()))
    shape = drafts.num_rows, width
    token_ids, base = np.zeros(shape, np.int64), np.full(shape, -1)
    parents = chain_parents(*shape, torch.device("cpu")).numpy().copy()
    sources, positions = drafts.sources.numpy(force=True).copy(), drafts.positions
    is_form = np.zeros(shape, np.bool_)
    token_ids[:, : drafts.width] = drafts.token_ids.numpy(force=True)
    base[:, : drafts.width] = np.arange(drafts.width)
    if drafts.parents is not None:
        parents[:, : drafts.width] = drafts.parents.numpy(force=True)
    for index, row in grown.items():
        number = numbers[index] = len(row)
        if not number:
            continue
        columns = np.array(row, np.int64).T
        token_ids[index, :number], parents[index, :number], base[index, :number] = columns
        is_form[index, :number] = columns[2] < 0
        if is_form[index, 0]:
            sources[index] = DraftSource.FORM
    num_tokens = np.array(numbers)
    is_padding = np.arange(width) >= num_tokens[:, None]
    is_chain = (parents == np.arange(-1, width - 1)) | is_padding

    def put(array: npt.NDArray[Any]) -> torch.Tensor:
        return send(torch.from_numpy(array), device)

    sources *= num_tokens > 0
    has_no_base = put((num_tokens == 0) | is_form[:, :1].any(1))
    return FormDrafts(
        Drafts(
            token_ids=put(token_ids),
            num_tokens=put(num_tokens),
            sources=put(sources),
            parents=None if is_chain.all() else put(parents),
            positions=None if positions is None else torch.where(has_no_base, -1, positions),
            is_form=put(is_form),
        ),
        put(base),
    )
