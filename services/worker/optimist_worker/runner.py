"""Runs plans: the worker's step."""

import logging

import torch

from optimist_worker.core.acceptance import choose_tokens
from optimist_worker.core.admission import open_slot
from optimist_worker.core.batch import build_batch
from optimist_worker.core.kv import KVPool
from optimist_worker.core.outcome import Outcome, collect_result, settle_row
from optimist_worker.core.plan import Plan, PlanError, StepResult
from optimist_worker.core.row import Row, RowFailure, fit_row
from optimist_worker.core.slot import Slot, Window
from optimist_worker.model import Model

logger = logging.getLogger(__name__)


class Runner:
    """Owns the slots and the KV memory. Not thread-safe: one plan at a time."""

    def __init__(self, model: Model, num_blocks: int, block_size: int, max_model_len: int) -> None:
        self.model, self.max_model_len = model, max_model_len
        self.pool = KVPool(model.layers, num_blocks, block_size, model.dtype, model.device)
        self._slots: dict[int, Slot] = {}

    def release_all(self) -> None:
        """Frees every slot."""
        self._slots.clear()

    def execute(self, plan: Plan) -> StepResult:
        """Runs one plan.

        Raises:
            PlanError: The plan admits to a slot that is taken.
        """
        self._update_slots(plan)
        rows, errors = self._fit_rows(plan)
        outcomes: dict[int, Outcome] = {}
        for row, choice in zip(rows, self._run(plan.sequence, rows), strict=True):
            if isinstance(choice, str):
                errors[row.slot_id] = choice
            else:
                outcomes[row.slot_id] = settle_row(row, choice)
        num_tokens = sum(row.num_tokens for row in rows)
        return collect_result(plan, self._slots, outcomes, errors, num_tokens)

    @torch.inference_mode()
    def compute(self, rows: list[Row]) -> list[list[int] | None]:
        """Runs one forward pass; returns what `choose_tokens` does. Moves no slot.

        Raises:
            RuntimeError, ValueError, IndexError: PyTorch refuses it.
        """
        batch = build_batch(rows, self.pool, self.model.device)
        return choose_tokens(self.model.forward(batch), rows)

    def _update_slots(self, plan: Plan) -> None:
        for released in plan.released_slots:
            self._slots.pop(released, None)
        for admission in plan.admissions:
            if admission.slot in self._slots:
                holder = self._slots[admission.slot].request_id
                raise PlanError(f"admissions.slot: {admission.slot} is held by request {holder}")
            self._slots[admission.slot] = open_slot(
                admission, self.pool.block_size, self.max_model_len, self.model.vocab_size
            )
        for window in plan.windows:
            # The slot may have been given back since the window was made; then it has no use.
            if window.slot in self._slots:
                self._slots[window.slot].set_window(Window(window.base, window.token_ids))

    def _fit_rows(self, plan: Plan) -> tuple[list[Row], dict[int, str]]:
        """Returns the rows that can run, and why others fail; requests that ended do neither."""
        rows: list[Row] = []
        errors: dict[int, str] = {}
        for planned in plan.rows():
            slot = self._slots.get(planned.slot)
            if planned.num_known_tokens == 0:
                continue
            if slot is None:
                errors[planned.slot] = f"slot {planned.slot} holds no request"
                continue
            slot.block_table += planned.new_blocks
            if slot.ended:
                continue
            try:
                rows.append(fit_row(planned, slot, self.pool.block_size))
            except RowFailure as failure:
                errors[planned.slot] = str(failure)
        return rows, errors

    def _run(self, sequence: int, rows: list[Row]) -> list[list[int] | str]:
        """Returns per row the tokens chosen at its positions, or why it failed."""
        if not rows:
            return []
        try:
            choices = self.compute(rows)
        except (RuntimeError, ValueError, IndexError) as error:
            # Whatever PyTorch refuses, memory included, ends these requests and not the worker.
            logger.exception("plan %d: the forward pass failed", sequence)
            reason = " ".join(str(error).split())[:300]
            return [f"the forward pass failed: {reason}"] * len(rows)
        return ["the model's logits are not finite" if c is None else c for c in choices]
