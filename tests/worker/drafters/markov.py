"""A target whose next token depends on the last one, and on penalties; drafters; statistics."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from optimist_common.sampling import SamplingParams
from optimist_worker.core.acceptance.processing import process
from optimist_worker.core.acceptance.sampling_table import SamplingColumns, SamplingTable
from optimist_worker.core.acceptance.verdict import AcceptanceRule, Verdict, VerifyPass
from optimist_worker.core.drafts import Drafts, lay_out, no_drafts, node_depths
from optimist_worker.drafters.shape import choose_drafts

CPU = torch.device("cpu")
PROMPT = (2, 0, 2, 1)
Judge = Callable[[VerifyPass], Verdict]


def random_logits(vocab_size: int, seed: int, scale: float = 1.5) -> Tensor:
    """The logits after each token, float32 `[vocab_size, vocab_size]`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(vocab_size, vocab_size, generator=generator) * scale


class ManySeeds(SamplingTable):
    """One request's parameters for as many slots as one likes, each with its number as seed."""

    def gather(self, slots: Tensor) -> SamplingColumns:
        return super().gather(torch.zeros_like(slots))._replace(seed=slots)

    def bias(self, slots: Tensor) -> Tensor:
        return super().bias(torch.zeros_like(slots))


class Rows:
    """Requests that differ in nothing but their seeds, and what they have generated."""

    def __init__(self, logits: Tensor, params: SamplingParams, num_rows: int) -> None:
        self.logits = logits
        self.table = ManySeeds(1, logits.shape[-1], CPU)
        self.table.set(0, params)
        self.needs = self.table.needs([0])
        self.slots = torch.arange(num_rows)
        self.num_tokens = torch.full((num_rows,), len(PROMPT))
        self.token_ids = torch.zeros((num_rows + 1, 40), dtype=torch.int32)
        self.token_ids[:, : len(PROMPT)] = torch.tensor(PROMPT, dtype=torch.int32)

    def last_tokens(self) -> Tensor:
        return self.token_ids[self.slots, self.num_tokens - 1].long()

    def verify_pass(self, drafts: Drafts) -> VerifyPass:
        """A pass of the target over the drafts."""
        before = torch.cat([self.last_tokens()[:, None], drafts.token_ids], 1)
        nodes = lay_out(1 + drafts.num_tokens, int((1 + drafts.num_tokens).sum()))
        depths = torch.nn.functional.pad(drafts.depths, (1, 0))
        return VerifyPass(
            logits=self.logits[before[nodes.rows, nodes.offsets]],
            nodes=nodes,
            positions=self.num_tokens[nodes.rows] + depths[nodes.rows, nodes.offsets],
            node_slots=self.slots[nodes.rows],
            drafts=drafts,
            slots=self.slots,
            num_tokens=self.num_tokens,
            num_prompt_tokens=torch.full_like(self.num_tokens, len(PROMPT)),
            token_ids=self.token_ids,
            sampling=self.table,
            needs=self.needs,
        )

    def extend(self, verdict: Verdict) -> None:
        """Appends what was emitted."""
        for number in range(verdict.token_ids.shape[1]):
            rows = self.slots[number <= verdict.num_accepted]
            indices = self.num_tokens[rows] + number
            self.token_ids[rows, indices] = verdict.token_ids[rows, number].int()
        self.num_tokens = self.num_tokens + verdict.num_accepted + 1


Drafter = Callable[[Rows], Drafts]


def nothing_drafted(rows: Rows) -> Drafts:
    return no_drafts(len(rows.slots), CPU)


def draft(
    rows: Rows, parents: Sequence[int], logits: Tensor, rule: AcceptanceRule | None
) -> Drafts:
    """Drafts a tree of one shape for every row, level by level, as a model's drafter does."""
    num_rows, num_nodes = len(rows.slots), len(parents)
    shape = torch.tensor(parents).expand(num_rows, -1)
    depths = node_depths(shape)
    token_ids = torch.zeros((num_rows, num_nodes), dtype=torch.int64)
    probabilities = torch.zeros((num_rows, num_nodes, logits.shape[-1]))
    most = 1
    for parent in range(-1, num_nodes):
        children = [node for node, above in enumerate(parents) if above == parent]
        if not children:
            continue
        most = max(most, len(children))
        before = rows.last_tokens() if parent < 0 else token_ids[:, parent]
        positions = rows.num_tokens + depths[:, children[0]] - 1
        scores = process(logits[before], rows.slots, rows.table, rows.needs)
        columns = rows.table.gather(rows.slots)
        chosen = choose_drafts(scores, columns, positions, len(children), rule)
        token_ids[:, children] = chosen.token_ids
        if chosen.probabilities is not None:
            probabilities[:, children] = chosen.probabilities
    return Drafts(
        token_ids,
        torch.full((num_rows,), num_nodes),
        torch.zeros(num_rows, dtype=torch.int64),
        None if list(parents) == list(range(-1, num_nodes - 1)) else shape.clone(),
        most,
        probabilities if rule is AcceptanceRule.REJECTION else None,
    )


def generate(rows: Rows, drafter: Drafter, judge: Judge, num_tokens: int) -> Tensor:
    """Runs steps until every row has so many tokens; returns them, `[num_rows, num_tokens]`."""
    while int(rows.num_tokens.min()) < len(PROMPT) + num_tokens:
        rows.extend(judge(rows.verify_pass(drafter(rows))))
    return rows.token_ids[:-1, len(PROMPT) : len(PROMPT) + num_tokens].long()


def next_distribution(logits: list[float], params: SamplingParams, output: list[int]) -> Tensor:
    """The distribution to be sampled from, worked out token by token; float64 `[vocab_size]`."""
    scores = [logit + params.logit_bias.get(token, 0.0) for token, logit in enumerate(logits)]
    for token in {*PROMPT, *output}:
        penalty = params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in output:
        scores[token] -= params.frequency_penalty
    for token in set(output):
        scores[token] -= params.presence_penalty
    weights = [math.exp(score / params.temperature) for score in scores]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    if params.top_k:
        order = order[: params.top_k]
    total, before, kept = sum(weights[token] for token in order), 0.0, []
    for token in order:
        if before / total < params.top_p:
            kept.append(token)
        before += weights[token]
    most = max(weights)
    kept = [token for token in kept if weights[token] >= params.min_p * most]
    result = torch.zeros(len(weights), dtype=torch.float64)
    result[kept] = torch.tensor([weights[token] for token in kept], dtype=torch.float64)
    return result / result.sum()


def text_distribution(logits: Tensor, params: SamplingParams, num_tokens: int) -> Tensor:
    """The probability of every output of so many tokens, float64 `[vocab_size ** num_tokens]`."""
    table = logits.double().tolist()

    def go_on(text: list[int]) -> Tensor:
        after = next_distribution(table[(*PROMPT, *text)[-1]], params, text)
        if len(text) == num_tokens - 1:
            return after
        return torch.cat([chance * go_on([*text, token]) for token, chance in enumerate(after)])

    return go_on([])


def surprise(texts: Tensor, expected: Tensor) -> float:
    """How many standard deviations texts are off their distribution, by Pearson's test.

    There are texts `[num_rows, num_tokens]`, and of each possible one the probability,
    `[vocab_size ** num_tokens]`. Those expected less than five times are counted together. The cube
    root of chi-square is nearly normal (Wilson and Hilferty 1931). Infinite if one is impossible.
    """
    vocab_size = round(len(expected) ** (1 / texts.shape[1]))
    index = torch.zeros(len(texts), dtype=torch.int64)
    for number in range(texts.shape[1]):
        index = index * vocab_size + texts[:, number]
    observed = torch.bincount(index, minlength=len(expected)).double()
    assert len(observed) == len(expected), "a token is beyond the vocabulary"
    if bool((observed[expected == 0.0] > 0).any()):
        return math.inf
    wanted = expected * len(texts)
    is_rare = wanted < 5.0
    rare = torch.stack([observed[is_rare].sum(), wanted[is_rare].sum()])
    pairs = torch.stack([observed[~is_rare], wanted[~is_rare]])
    if rare[1] > 0:
        pairs = torch.cat([pairs, rare[:, None]], 1)
    chi_square = float(((pairs[0] - pairs[1]) ** 2 / pairs[1]).sum())
    degrees = max(1, pairs.shape[1] - 1)
    spread = 2.0 / (9.0 * degrees)
    return float(((chi_square / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))
