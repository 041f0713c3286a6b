"""Simulates answers without a model: it says the answer's tokens and then the end token.

As in `bench predictions`, a pass accepts the longest path of its drafts that agrees, emits one
token more, and costs 1 and `share` for each draft. A draft has to be as likely as its cost is worth
so far: `share` times the tokens per cost of a pass, both with a prior. That holds for what the
aligner drafts and for what the form does.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimist_aligner.algorithm import Follower
from optimist_bench.forms.drafting import Drafter
from optimist_bench.predictions.simulator import PRIOR_COST, PRIOR_TOKENS
from optimist_common.drafts import TokenTree
from optimist_scheduler.core.requests.config import FORM_BESIDE_WINDOWS
from optimist_worker.grammar.draft_tree import FormDraft, GrammarRow


@dataclass
class Run:
    """What became of one answer, or of several."""

    num_tokens: int = 0
    num_passes: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_form_drafted: int = 0
    """Of the drafted ones, those of the form."""
    num_form_accepted: int = 0

    def cost(self, share: float) -> float:
        """Returns what all passes cost."""
        return self.num_passes + share * self.num_drafted

    def add(self, other: "Run") -> None:
        """Adds the counts of another run."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def simulate(
    truth: Sequence[int],
    follower: Follower | None,
    form: Drafter | None,
    window: int,
    share: float,
) -> Run:
    """Runs one answer to its end.

    Args:
        truth: What the model says, the end token last.
        follower: Of the aligner, if it drafts.
        form: Drafts from the form, if anything does.
        window: Most drafts of a pass.
        share: Cost of a draft, as a share of a pass.
    """
    run = Run()
    while run.num_tokens < len(truth):
        rate = (run.num_tokens + PRIOR_TOKENS) / (run.cost(share) + PRIOR_COST)
        drafts = _draft(follower, form, window, rate * share)
        accepted = find_path(drafts, truth[run.num_tokens :])
        emitted = truth[run.num_tokens : run.num_tokens + len(accepted) + 1]
        if follower is not None:
            follower.observe(array("i", emitted))
        if form is not None:
            form.commit(emitted)
        run.num_passes += 1
        run.num_tokens += len(emitted)
        run.num_drafted += len(drafts)
        run.num_accepted += len(accepted)
        run.num_form_drafted += sum(one.base < 0 for one in drafts)
        run.num_form_accepted += sum(drafts[index].base < 0 for index in accepted)
    return run


def _draft(
    follower: Follower | None, form: Drafter | None, window: int, least: float
) -> Sequence[FormDraft]:
    beside = 0 if form is None else FORM_BESIDE_WINDOWS
    base = None if follower is None else follower.propose(window - beside, least)
    token_ids, parents = ([], []) if base is None else (base.token_ids, base.parents)
    if form is not None:
        return form.draft(GrammarRow(0, list(token_ids), list(parents)), window, least)
    return [FormDraft(*each) for each in zip(token_ids, parents, range(len(parents)), strict=True)]


def find_path(drafts: Sequence[FormDraft], token_ids: Sequence[int]) -> list[int]:
    """Returns the nodes of the longest path from the root that agrees with some tokens."""
    columns = [[one.token_id for one in drafts], [one.parent for one in drafts]]
    tree = TokenTree.from_columns(*(np.array(column, np.int32) for column in columns))
    return tree.walk(token_ids)
