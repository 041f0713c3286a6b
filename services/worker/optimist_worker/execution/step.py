"""One step on the device: drafts, the target's pass, the verdict, and what is left of it."""

import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from optimist_worker.core.acceptance.rules import verify_coupled, verify_rejection
from optimist_worker.core.acceptance.verdict import AcceptanceRule, Verdict, VerifyPass, nothing
from optimist_worker.core.batch.flat_batch import LAY_OUT, FlatBatch, Layout, PassSize
from optimist_worker.core.batch.host_view import StepBounds
from optimist_worker.core.batch.logprobs import (
    LogprobTargets,
    find_broken,
    score_output,
    score_prompts,
)
from optimist_worker.core.batch.results import SETTLE, compact, count_emitted, count_form
from optimist_worker.core.batch.slot_table import FIT, FittedRows
from optimist_worker.core.batch.window_table import WindowDrafts
from optimist_worker.core.drafts import Drafts, no_drafts
from optimist_worker.core.recurrence.rows import RecurrentPass
from optimist_worker.drafters.drafter import (
    Drafter,
    DraftRows,
    Proposal,
    VerifiedStep,
    merge,
    spread,
)
from optimist_worker.grammar.masks import GrammarStep, Masks
from optimist_worker.model.memory import DeviceState
from optimist_worker.model.model import FeatureTap, Model


class Stopwatch:
    """Takes the time of parts of a step: what drafting takes."""

    def __init__(self, *, is_cuda: bool = False, is_on: bool = True) -> None:
        """Times the host or a CUDA stream; one that is not on is for graphs, which have no events.

        Of a stream the times are there once it has come so far.
        """
        self._is_cuda, self._is_on = is_cuda, is_on
        self._marks: list[Any] = []

    def mark(self) -> None:
        """A part begins, or ends."""
        if not self._is_on:
            return
        if not self._is_cuda:
            self._marks.append(time.perf_counter_ns())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def total_ns(self) -> int:
        """Returns the time of all parts, in nanoseconds."""
        parts = zip(self._marks[::2], self._marks[1::2], strict=True)
        if self._is_cuda:
            return sum(int(first.elapsed_time(last) * 1e6) for first, last in parts)
        return sum(last - first for first, last in parts)


class StepTensors(NamedTuple):
    """What a step gives back, on the device."""

    packed: torch.Tensor
    """What `results.pack` has packed."""
    scored: torch.Tensor | None
    """Log-probabilities of new tokens, then of prompts', see `logprobs`; None if no one wants any,
    or no row could run."""


@dataclass(slots=True)
class PreparedStep:
    """A step before its pass: all of it follows from the state and the plan."""

    rows: FittedRows
    bounds: StepBounds
    indices: torch.Tensor | None
    """Where drafts lie in their windows, see `WindowDrafts`."""
    proposal: Proposal
    size: PassSize
    wanted: LogprobTargets | None
    layout: Layout | None = None
    """None if no row can run, as are all below."""
    batch: FlatBatch | None = None
    grammar: GrammarStep | None = None
    """If a row has to follow a grammar."""


class Step:
    """The state on the device, and the function that moves it on by a step.

    Nothing in here waits for the device, unless the state says that sizes are read: on the CPU,
    where everything is there at once. Then nothing is padded.

    A step has parts, because the target may be elsewhere: `prepare` and `settle` need the state,
    `judge` needs the logits and reads the state only.
    """

    def __init__(
        self,
        model: Model,
        state: DeviceState,
        drafter: Drafter | None,
        tap: FeatureTap | None,
        rule: AcceptanceRule,
    ) -> None:
        self._model, self._pool, self._table = model, state.pool, state.table
        self._recurrent = state.recurrent
        self._windows, self._sampling = state.windows, state.sampling
        self._drafter, self._tap = drafter, tap
        self._judge_drafts = verify_coupled if rule is AcceptanceRule.COUPLED else verify_rejection
        self._reads = state.table.reads_sizes

    @torch.inference_mode()
    def run(
        self,
        columns: torch.Tensor,
        bounds: StepBounds,
        watch: Stopwatch,
        masks: Masks,
        wanted: LogprobTargets | None = None,
    ) -> StepTensors:
        """Runs a step of which the host knows the bounds.

        The columns are slots, known tokens and most drafts as planned, int64 `[3, num_rows]`.
        """
        prepared = self.prepare(columns, bounds, watch, wanted, masks)
        if prepared.batch is None:
            return StepTensors(self.settle(prepared, None, watch), None)
        logits = self._model.forward(prepared.batch)
        verdict, scored = self.judge(prepared, logits, masks)
        return StepTensors(self.settle(prepared, verdict, watch), scored)

    @torch.inference_mode()
    def prepare(
        self,
        columns: torch.Tensor,
        bounds: StepBounds,
        watch: Stopwatch,
        wanted: LogprobTargets | None = None,
        masks: Masks | None = None,
    ) -> PreparedStep:
        """Drafts, and lays the pass out; see `run`. The rows' state stays as it is.

        Grammars bring drafts where their masks are at hand.
        """
        rows: FittedRows = FIT(columns, self._table)
        watch.mark()
        width = min(bounds.max_num_drafts, self._read(rows.limits, bounds.max_num_drafts))
        limits = rows.limits
        if masks is not None and bounds.num_form_tokens:
            limits = masks.withhold(rows.slots, limits, bounds.num_form_tokens)
        from_windows = self._draft_windows(rows, limits, width, bounds)
        proposal = self._draft(rows, from_windows, width, bounds)
        indices = from_windows.indices
        if masks is not None and bounds.has_grammar and width:
            proposal, indices = self._draft_form(rows, proposal, indices, masks, bounds)
        watch.mark()
        drafts = proposal.drafts
        size = self._size(rows, drafts, bounds)
        prepared = PreparedStep(rows, bounds, indices, proposal, size, wanted)
        if size.num_tokens:
            layout: Layout = LAY_OUT(rows.slots, self._table, rows, drafts, size)
            prepared.layout = layout
            prepared.batch = layout.build_batch(self._pool, rows, size)
            if self._recurrent is not None:
                prepared.batch.recurrent = RecurrentPass(
                    self._recurrent,
                    rows.slots,
                    rows.num_known_tokens,
                    drafts.num_tokens,
                    drafts.parents,
                )
            if wanted is not None:
                wanted.extend(prepared.batch, layout.tokens)
            if bounds.has_grammar:
                prepared.grammar = GrammarStep(rows.slots, drafts, layout.nodes)
        return prepared

    @torch.inference_mode()
    def judge(
        self, prepared: PreparedStep, logits: torch.Tensor, masks: Masks
    ) -> tuple[Verdict, torch.Tensor | None]:
        """Judges the drafts by the logits that the pass was asked for; see `StepTensors.scored`."""
        rows, drafts, wanted = prepared.rows, prepared.proposal.drafts, prepared.wanted
        if (layout := prepared.layout) is None:
            raise ValueError("without a pass there are no logits")
        allowed = None
        if prepared.grammar is not None:
            allowed = masks.allowed(prepared.grammar)
        if wanted is not None:
            logits, of_prompts = logits.tensor_split([prepared.size.num_logits])
        verdict = self._judge_drafts(
            VerifyPass(
                logits=logits,
                nodes=layout.nodes,
                positions=layout.next_positions,
                node_slots=layout.next_slots,
                drafts=drafts,
                slots=rows.slots,
                num_tokens=rows.columns.num_tokens,
                num_prompt_tokens=rows.columns.num_prompt_tokens,
                # A row that goes on after its known tokens has blocks for them.
                token_ids=self._table.token_ids[:, : prepared.bounds.max_num_keys],
                sampling=self._sampling,
                needs=prepared.bounds.needs,
                allowed=allowed,
                late_tokens=self._table.late_tokens(rows) if prepared.bounds.has_minimum else None,
            )
        )
        if wanted is None:
            return verdict, None
        scored_prompts = score_prompts(of_prompts, self._table, rows, wanted)
        verdict.is_sound = verdict.is_sound & ~find_broken(scored_prompts, wanted, rows)
        number = count_emitted(rows, verdict)
        scored = score_output(logits, layout.nodes, verdict, number, wanted, reads=self._reads)
        return verdict, torch.cat([scored, scored_prompts])

    @torch.inference_mode()
    def settle(
        self, prepared: PreparedStep, verdict: Verdict | None, watch: Stopwatch
    ) -> torch.Tensor:
        """Moves the state on by a verdict, None without a pass; returns what `pack` has packed."""
        rows, bounds, drafts = prepared.rows, prepared.bounds, prepared.proposal.drafts
        verdict = verdict or nothing(drafts)
        windows = self._windows if bounds.uses_windows else None
        settled = SETTLE(
            *(rows.slots, self._table, windows, rows, drafts, prepared.indices, verdict),
            count_form(drafts, verdict),
        )
        compact(self._table, self._pool, rows, verdict)
        if prepared.batch is not None and prepared.batch.recurrent is not None:
            prepared.batch.recurrent.settle(verdict.path, verdict.num_accepted)
        if self._drafter is not None and prepared.layout is not None:
            watch.mark()
            features = None if self._tap is None else self._tap.take()
            self._drafter.observe(
                VerifiedStep(
                    rows,
                    prepared.layout.tokens,
                    prepared.size,
                    prepared.proposal,
                    verdict,
                    settled.num_emitted,
                    features,
                )
            )
            watch.mark()
        packed: torch.Tensor = settled.packed
        return packed

    def _draft_windows(
        self, rows: FittedRows, limits: torch.Tensor, width: int, bounds: StepBounds
    ) -> WindowDrafts:
        if width == 0 or not bounds.uses_windows:
            nothing = no_drafts(len(rows.slots), rows.slots.device)
            return WindowDrafts(nothing, None, rows.drafter_limits)
        drafts, indices, drafter_limits = self._windows.draft(
            rows.slots, limits, rows.drafter_limits, width, has_trees=bounds.has_trees
        )
        drafts = drafts.trim(self._read(drafts.num_tokens, width))
        if self._reads and drafts.parents is not None and not drafts.is_tree.any():
            # What is left of a tree is often a chain, which is verified with less ado.
            drafts = replace(drafts, parents=None)
        return WindowDrafts(drafts, indices, drafter_limits)

    def _draft(
        self, rows: FittedRows, windows: WindowDrafts, width: int, bounds: StepBounds
    ) -> Proposal:
        """Adds the drafter's drafts for the rows that have none from their windows."""
        proposal, limits = Proposal(windows.drafts), windows.drafter_limits
        if self._drafter is None or not bounds.uses_drafter or width == 0:
            return proposal
        most = self._drafter.max_tokens
        if bounds.max_drafter_tokens is not None:
            most = min(most, bounds.max_drafter_tokens)
        wanting = DraftRows(
            slots=rows.slots,
            columns=rows.columns,
            limits=limits.clamp(max=most) if most < width else limits,
            width=min(width, most),
            max_length=bounds.max_num_keys,
            max_unseen=bounds.max_unseen,
            num_unseen=bounds.num_unseen,
            needs=bounds.needs,
            least_chance=bounds.least_chance,
        )
        if self._reads:
            chosen = limits.nonzero()[:, 0]
            if not len(chosen):
                return proposal
            wanting.width = int(wanting.limits.max())
        if self._reads and len(chosen) < len(limits):
            drafted = spread(self._drafter.propose(wanting.select(chosen)), chosen, len(limits))
        else:
            drafted = self._drafter.propose(wanting)
        merged = merge(proposal.drafts, drafted)
        width = self._read(merged.drafts.num_tokens, merged.drafts.width)
        fed = None if merged.fed is None else merged.fed[:, :width]
        return Proposal(merged.drafts.trim(width), fed)

    def _draft_form(
        self,
        rows: FittedRows,
        proposal: Proposal,
        indices: torch.Tensor | None,
        masks: Masks,
        bounds: StepBounds,
    ) -> tuple[Proposal, torch.Tensor | None]:
        """Leaves out what grammars forbid, and adds what they say; returns indices in windows too.

        Drafts of which a drafter keeps more than the tokens stay as they are.
        """
        drafts = proposal.drafts
        if drafts.probabilities is not None or proposal.fed is not None:
            return proposal, indices
        grown = masks.draft(rows.slots, drafts, rows.limits, bounds.least_chance)
        if grown is None:
            return proposal, indices
        if bounds.uses_windows:
            indices = self._windows.reindex(rows.slots, indices, grown.base)
        drafts = grown.drafts
        return Proposal(drafts.trim(self._read(drafts.num_tokens, drafts.width))), indices

    def _size(self, rows: FittedRows, drafts: Drafts, bounds: StepBounds) -> PassSize:
        """Returns the size of the pass: as it is if that may be read, else its bounds."""
        if not self._reads:
            return PassSize(
                bounds.num_tokens, bounds.num_logits, bounds.max_num_queries, bounds.max_num_keys
            )
        lengths = (rows.num_known_tokens + drafts.num_tokens).tolist()
        num_logits = int(((1 + drafts.num_tokens) * rows.emits).sum())
        return PassSize(sum(lengths), num_logits, max(lengths), bounds.max_num_keys)

    def _read(self, values: torch.Tensor, bound: int) -> int:
        """Returns the largest value, or the bound if values may not be read."""
        return int(values.max()) if self._reads else bound
