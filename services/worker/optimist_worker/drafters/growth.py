"""Trees of drafts that grow level by level."""

import math

import torch

from optimist_worker.core.drafts import Drafts
from optimist_worker.drafters.shape import RANK_SHARE, DraftShape, Level


class Growth:
    """A tree for each row that grows level by level.

    All candidates stay in a pool, level after level; in the end the best nodes of the pool are
    taken. A node's score is the sum over its path, so no node is better than its parent, and as
    ties go to the earlier one the best nodes always form a tree.
    """

    def __init__(self, shape: DraftShape, num_rows: int, device: torch.device) -> None:
        self._shape, self._num_rows, self._device = shape, num_rows, device
        self._tokens: list[torch.Tensor] = []
        self._parents: list[torch.Tensor] = []
        self._scores: list[torch.Tensor] = []
        self._probabilities: list[torch.Tensor] = []
        self._bits: list[torch.Tensor] = []
        self._fed: list[torch.Tensor] = []
        self._frontier: torch.Tensor | None = None
        self.num_fed = 0
        """Nodes per row that were fed to the drafter."""

    def add(self, level: Level) -> None:
        """Adds the children of the frontier, or at first those of the rows' last known tokens."""
        num_parents, width = level.token_ids.shape[1:]
        # Rounding may make a certain token more than certain, and padding may be no number at all.
        scores = level.log_probabilities.clamp(max=0.0)
        scores = torch.where(scores.isnan(), -torch.inf, scores)
        if not self._shape.is_dynamic:
            ranks = torch.arange(width, dtype=scores.dtype, device=self._device)
            # A token that cannot be drawn at all stays out of fixed trees too.
            static = ranks * math.log(RANK_SHARE) - 1.0
            scores = torch.where(scores.isneginf(), scores, static)
        if self._frontier is None:
            parents = torch.full((self._num_rows, num_parents), -1, device=self._device)
            bits = torch.zeros_like(parents)
        else:
            parents = self._frontier
            scores = scores + self._pool(self._scores).gather(1, parents)[:, :, None]
            bits = self._pool(self._bits).gather(1, parents)
        size = (self._num_rows, num_parents, width)
        self._tokens.append(level.token_ids.flatten(1))
        self._parents.append(parents[:, :, None].expand(size).flatten(1))
        self._scores.append(scores.flatten(1))
        self._bits.append(bits[:, :, None].expand(size).flatten(1))
        self._fed.append(torch.full_like(self._parents[-1], -1))
        if level.probabilities is not None:
            self._probabilities.append(level.probabilities.flatten(1, 2))

    def advance(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Chooses the nodes of the last level that the next one grows from, to be fed.

        Returns:
            Their tokens, their parents' places among the fed nodes (-1: none), and their
            ancestors among the fed nodes as bits, themselves included; `[num_rows, num_nodes]`.
        """
        scores = self._scores[-1]
        number = min(self._shape.width, scores.shape[1])
        every = torch.arange(number, device=self._device).expand(self._num_rows, number)
        chosen = scores.topk(number, 1).indices if number < scores.shape[1] else every
        fed = self.num_fed + every
        parents = self._parents[-1].gather(1, chosen)
        parent_fed = torch.full_like(fed, -1)
        if len(self._fed) > 1:
            parent_fed = self._pool(self._fed).gather(1, parents)
        bits = self._bits[-1].gather(1, chosen) | (1 << (fed % 64))
        self._bits[-1] = self._bits[-1].scatter(1, chosen, bits)
        self._fed[-1] = self._fed[-1].scatter(1, chosen, fed)
        before = sum(scores.shape[1] for scores in self._scores[:-1])
        self._frontier = chosen + before
        self.num_fed += number
        return self._tokens[-1].gather(1, chosen), parent_fed, bits

    def finish(self, limits: torch.Tensor, source: int) -> tuple[Drafts, torch.Tensor]:
        """Takes the best nodes.

        Args:
            limits: Most nodes per row, `[num_rows]`.
            source: The drafter.

        Returns:
            The drafts, and which fed node each of them was, -1 for none.
        """
        scores, parents = self._pool(self._scores), self._pool(self._parents)
        width = min(self._shape.num_tokens, scores.shape[1])
        order = scores.argsort(dim=1, descending=True, stable=True)
        places = torch.empty_like(order).scatter_(
            1, order, torch.arange(order.shape[1], device=self._device).expand_as(order)
        )
        chosen = order[:, :width]
        moved = parents.gather(1, chosen)
        moved = torch.where(moved < 0, -1, places.gather(1, moved.clamp(min=0)))
        # The parents of impossible nodes, which do not count, may have been left out.
        moved = moved.clamp(max=width - 1)
        is_possible = ~scores.gather(1, chosen).isneginf()
        number = torch.minimum(is_possible.sum(1), limits)
        probabilities = None
        if self._probabilities:
            pool = torch.cat(self._probabilities, 1)
            probabilities = pool.gather(1, chosen[:, :, None].expand(-1, -1, pool.shape[2]))
        drafts = Drafts(
            token_ids=self._pool(self._tokens).gather(1, chosen),
            num_tokens=number,
            sources=torch.where(number > 0, source, 0),
            parents=None if self._shape.is_chain else moved,
            max_siblings=self._shape.width,
            probabilities=probabilities,
        )
        return drafts, self._pool(self._fed).gather(1, chosen)

    @staticmethod
    def _pool(levels: list[torch.Tensor]) -> torch.Tensor:
        return levels[0] if len(levels) == 1 else torch.cat(levels, 1)
