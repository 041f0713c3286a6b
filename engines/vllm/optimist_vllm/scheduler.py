"""vLLM's scheduler with drafts from what each request may repeat."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from functools import cache, partial, wraps
from time import perf_counter_ns
from typing import Any

from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore

from optimist_aligner import INT32, Aligner, Draft, Vocabulary
from optimist_vllm.core.drafts import Drafts
from optimist_vllm.core.followed_request import FollowedRequest
from optimist_vllm.core.payload import PAYLOAD, Attached, Report, take_attached
from optimist_vllm.core.width import DraftWidths
from optimist_vllm.preparation import Preparation, Prepared

logger = init_logger("vllm.optimist_vllm")


class _Entry:
    """A request of the scheduler as it is followed."""

    __slots__ = ("attached", "delivered", "followed", "prepared")

    def __init__(
        self, attached: Attached, delivered: Sequence[int], prepared: "Future[Prepared]"
    ) -> None:
        self.attached, self.delivered, self.prepared = attached, delivered, prepared
        self.followed: FollowedRequest | None = None


class PredictionScheduler(Scheduler):
    """Follows each request's output and drafts how it goes on; the workers only verify."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _ask_no_workers()
        model_config = self.vllm_config.model_config
        # A copy, since it is used on a thread.
        tokenizer = deepcopy(cached_tokenizer_from_config(model_config))
        encode = partial(tokenizer.encode, add_special_tokens=False)
        self._vocabulary_size: int = model_config.get_vocab_size()
        texts = _read_texts(tokenizer, self._vocabulary_size)
        self._vocabulary = Vocabulary(texts, encode)
        algorithm = Aligner(self._vocabulary, is_chain=True)
        executor = ThreadPoolExecutor(1, "optimist-prepare")
        # So that the first request does not wait for it.
        executor.submit(lambda: algorithm.common)
        self._preparation = Preparation(algorithm, encode, executor)
        self._entries: dict[str, _Entry] = {}
        self._unprimed: dict[str, list[int]] = {}
        """Output of an earlier run that the grammars of requests have not taken yet."""
        self._widths = DraftWidths()
        self._scheduled_ns = 0

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Takes the prediction out of a request, so that it goes no further, and reads it."""
        params = request.sampling_params
        if params is not None:
            attached, params.extra_args = take_attached(params.extra_args)
            is_new = request.request_id not in self.requests
            if is_new and not request.resumable and request.prompt_token_ids is not None:
                self._forget_gone()
                self._begin(request, attached)
        super().add_request(request, *args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedules; the drafts say nothing of themselves in dumps."""
        self._scheduled_ns = perf_counter_ns()
        output = super().schedule(*args, **kwargs)
        self._prime_grammars()
        drafts = output.scheduled_spec_decode_tokens
        for request_id, token_ids in drafts.items():
            drafts[request_id] = Drafts(INT32, token_ids)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Takes the tokens of a pass, reports what became of drafts, and drafts for the next."""
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)
        pass_ns = perf_counter_ns() - self._scheduled_ns
        drafts = scheduler_output.scheduled_spec_decode_tokens
        emitting = [
            output for each in outputs.values() for output in each.outputs if output.new_token_ids
        ]
        for output in emitting:
            self._settle(output, drafts.get(output.request_id, ()))
        self._widths.observe_pass(
            scheduler_output.total_num_scheduled_tokens,
            sum(map(len, drafts.values())),
            len(emitting),
            sum(len(output.new_token_ids) for output in emitting),
            pass_ns,
        )
        self._draft([output.request_id for output in emitting if output.finish_reason is None])
        return outputs

    def _begin(self, request: Any, attached: Attached) -> None:
        """Begins to follow a new request."""
        end = len(request.prompt_token_ids) - attached.num_delivered
        delivered = request.prompt_token_ids[end:]
        if delivered and request.use_structured_output:
            self._unprimed[request.request_id] = delivered
        if attached.max_drafts != 0:
            prepared = self._preparation.begin(attached, request.prompt_token_ids[:end])
            self._entries[request.request_id] = _Entry(attached, delivered, prepared)

    def _prime_grammars(self) -> None:
        """Lets grammars take what earlier runs of their requests delivered.

        vLLM schedules a request once its grammar is compiled, and makes the mask afterwards.
        """
        for request_id, token_ids in list(self._unprimed.items()):
            request = self.requests.get(request_id)
            structured = request.structured_output_request if request is not None else None
            if structured is not None and not structured.is_grammar_ready:
                continue
            del self._unprimed[request_id]
            if structured is None or isinstance(structured.grammar, Exception):
                continue
            if not structured.grammar.accept_tokens(request_id, token_ids):
                logger.error("request %s: its output so far breaks its grammar", request_id)

    def _settle(self, output: Any, drafts: Sequence[int]) -> None:
        entry = self._entries.get(output.request_id)
        if entry is None:
            return
        followed = entry.followed
        if followed is not None:
            positions = followed.settle(output.new_token_ids, drafts)
            account = followed.account
            report = Report(
                entry.attached.key,
                account.num_accepted,
                account.num_rejected,
                positions,
                followed.num_drafted,
                followed.draft_ns,
            )
            followed.draft_ns = 0
            output.kv_transfer_params = {**(output.kv_transfer_params or {}), PAYLOAD: list(report)}
        if output.finish_reason is not None:
            del self._entries[output.request_id]

    def _draft(self, request_ids: Sequence[str]) -> None:
        """Drafts for rows that go on; each of them emits a token in the next pass at least."""
        rows: list[tuple[Any, FollowedRequest, Draft]] = []
        for request_id in request_ids:
            request, followed = self.requests.get(request_id), self._find_followed(request_id)
            if request is None or followed is None:
                continue
            start = perf_counter_ns()
            try:
                path = self._find_path(request, followed, self._max_drafts(request_id))
            except Exception:
                # Whatever is wrong with it, the others go on, and this one without drafts.
                logger.exception("request %s is not followed any more", request_id)
                del self._entries[request_id]
                continue
            if path is not None:
                look_ns = perf_counter_ns() - start
                followed.draft_ns += look_ns
                self._widths.observe_look(look_ns)
                rows.append((request, followed, path))
        widths = self._widths.choose([path.values for _, _, path in rows], len(request_ids))
        for (request, followed, path), width in zip(rows, widths, strict=True):
            token_ids = path.token_ids[:width].tolist()
            if token_ids:
                token_ids = self.structured_output_manager.validate_tokens(request, token_ids)
            followed.draft(path.positions[: len(token_ids)])
            request.spec_token_ids = token_ids

    def _max_drafts(self, request_id: str) -> int:
        most: int = self.num_spec_tokens
        asked = self._entries[request_id].attached.max_drafts
        return most if asked is None else min(asked, most)

    def _find_path(self, request: Any, followed: FollowedRequest, max_drafts: int) -> Draft | None:
        """Returns what to draft for a request, None if that is not due."""
        price, num_output = self._widths.price, request.num_output_tokens
        room = min(
            max_drafts,
            # The pass brings a token of its own.
            self.max_model_len - request.num_tokens - 1,
            request.max_tokens - num_output - 1,
        )
        min_tokens = request.sampling_params.min_tokens
        if num_output < min_tokens:
            # Where a pass begins before the least length, vLLM lets the token after its drafts be
            # no end, wherever that token is.
            room = min(room, min_tokens - num_output - 1)
        if room < 1 or not followed.is_due(num_output, price):
            return None
        path = followed.find_path(request.output_token_ids, room, self._widths.least_value, price)
        if max(path.token_ids, default=0) >= self._vocabulary_size:
            # Tokenizers may have tokens that the model has not.
            return None
        return path

    def _find_followed(self, request_id: str) -> FollowedRequest | None:
        entry = self._entries.get(request_id)
        if entry is None or not entry.prepared.done():
            return None
        if entry.followed is None:
            error = entry.prepared.exception()
            if error is not None:
                logger.warning("request %s is not followed: %s", request_id, error)
                del self._entries[request_id]
                return None
            prepared = entry.prepared.result()
            entry.followed = FollowedRequest(
                prepared.reference, prepared.num_predicted, entry.delivered
            )
        return entry.followed

    def _forget_gone(self) -> None:
        """Forgets requests that were aborted."""
        for request_id in [each for each in self._entries if each not in self.requests]:
            self._entries.pop(request_id).prepared.cancel()


@cache
def _ask_no_workers() -> None:
    """Wraps `EngineCore.post_step`, once: the workers, which have no drafts, are not asked for any.

    Each time is a message to another process and back between two passes, 3 % of the time of a
    small model.
    """
    post_step = EngineCore.post_step

    @wraps(post_step)
    def post_step_of_others(self: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self.scheduler, PredictionScheduler):
            post_step(self, *args, **kwargs)

    EngineCore.post_step = post_step_of_others


def _read_texts(tokenizer: Any, vocabulary_size: int) -> list[str]:
    size = min(vocabulary_size, max(tokenizer.get_vocab().values()) + 1)
    return [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in range(size)]
