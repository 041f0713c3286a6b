"""Runs plans: the worker's step."""

import logging

import torch

from optimist_worker.core.acceptance import accept, choose_tokens
from optimist_worker.core.batch import build_batch
from optimist_worker.core.kv import KVPool
from optimist_worker.core.plan import (
    Admission,
    Plan,
    PlanError,
    PlannedRow,
    RowResult,
    StepResult,
)
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
        rows, failures = self._fit_rows(plan.rows)
        choices = self._run(plan.sequence, rows)
        settled = {
            row.slot_id: _settle(row, choice) for row, choice in zip(rows, choices, strict=True)
        }
        results = [
            settled.get(planned.slot) or self._failed(planned.slot, failures)
            for planned in plan.rows
        ]
        return StepResult(plan.sequence, results, sum(row.num_tokens for row in rows))

    def _update_slots(self, plan: Plan) -> None:
        for released in plan.released_slots:
            self._slots.pop(released, None)
        for admission in plan.admissions:
            if admission.slot in self._slots:
                holder = self._slots[admission.slot].request_id
                raise PlanError(f"admissions.slot: {admission.slot} is held by request {holder}")
            self._slots[admission.slot] = self._admit(admission)
        for window in plan.windows:
            # The slot may have been given back since the window was made; then it has no use.
            if window.slot in self._slots:
                self._slots[window.slot].set_window(Window(window.base, window.token_ids))

    def _admit(self, admission: Admission) -> Slot:
        slot = Slot(
            request_id=admission.request_id,
            token_ids=admission.token_ids,
            num_prompt_tokens=admission.num_prompt_tokens,
            sampling=admission.sampling,
        )
        slot.error = _fault(slot, self.model.vocab_size)
        return slot

    def _fit_rows(self, planned_rows: list[PlannedRow]) -> tuple[list[Row], dict[int, str]]:
        rows: list[Row] = []
        failures: dict[int, str] = {}
        for planned in planned_rows:
            slot = self._slots.get(planned.slot)
            if slot is None:
                failures[planned.slot] = f"slot {planned.slot} holds no request"
                continue
            slot.block_table += planned.new_blocks
            try:
                rows.append(fit_row(planned, slot, self.pool.block_size, self.max_model_len))
            except RowFailure as failure:
                failures[planned.slot] = str(failure)
        return rows, failures

    @torch.inference_mode()
    def _run(self, sequence: int, rows: list[Row]) -> list[list[int] | str]:
        """Returns per row the tokens chosen at its positions, or why it failed."""
        if not rows:
            return []
        try:
            batch = build_batch(rows, self.pool, self.model.device)
            choices = choose_tokens(self.model.forward(batch), rows)
        except (RuntimeError, ValueError, IndexError) as error:
            # Whatever PyTorch refuses, memory included, ends these requests and not the worker.
            logger.exception("plan %d: the forward pass failed", sequence)
            reason = " ".join(str(error).split())[:300]
            return [f"the forward pass failed: {reason}"] * len(rows)
        return ["the model's logits are not finite" if c is None else c for c in choices]

    def _failed(self, slot_id: int, failures: dict[int, str]) -> RowResult:
        slot = self._slots.get(slot_id)
        length = 0 if slot is None else slot.num_tokens
        return RowResult(slot_id, length, [], 0, 0, error=failures[slot_id])


def _settle(row: Row, choice: list[int] | str) -> RowResult:
    """Moves the slot to where the pass has brought it; rejected drafts are left behind."""
    slot, num_drafts = row.slot, len(row.draft_token_ids)
    if isinstance(choice, str):
        return RowResult(row.slot_id, slot.num_tokens, [], 0, 0, error=choice)
    emitted = accept(row.draft_token_ids, choice)
    num_accepted = max(0, len(emitted) - 1)
    slot.num_computed_tokens += row.num_known_tokens + num_accepted
    slot.extend(emitted)
    return RowResult(row.slot_id, slot.num_tokens, emitted, num_drafts, num_accepted)


def _fault(slot: Slot, vocab_size: int) -> str | None:
    """Returns why a request can never run, or None."""
    if not slot.token_ids:
        return "token_ids must not be empty"
    if not 0 < slot.num_prompt_tokens <= slot.num_tokens:
        return f"num_prompt_tokens must be in 1 to {slot.num_tokens}, not {slot.num_prompt_tokens}"
    outside = min(slot.token_ids) if min(slot.token_ids) < 0 else max(slot.token_ids)
    if not 0 <= outside < vocab_size:
        return f"token_ids: {outside} is not in the vocabulary ({vocab_size})"
    return slot.sampling.fault(vocab_size)
