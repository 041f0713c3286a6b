"""What alignment does to requests, at level debug: losses, searches and where windows begin."""

import logging

from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.text.sources import NO_POSITION, SEPARATOR, Sources
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_proposer.core.live_requests import LiveRequest, SentWindow

logger = logging.getLogger(__name__)


class AlignmentLog:
    """Writes a line when an output leaves its window, and when a window is sent."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Takes the tokens of the model."""
        self._texts, self._newlines = vocabulary.token_texts, vocabulary.newline_token_ids

    def write(
        self,
        live: LiveRequest,
        num_new: int,
        last: SentWindow | None,
        window: SentWindow | None,
    ) -> None:
        """Writes what the last `num_new` tokens of a request brought about, if it is anything.

        `last` is the window that was sent before these, `window` the one that is sent now.
        """
        loss = last and self._find_loss(live, live.num_known - num_new, last)
        if window is None and not loss:
            return
        facts = [loss] if loss else []
        facts += [self._describe(live.prepared.sources, window.draft)] if window else []
        about = {"request_id": live.request_id}
        logger.debug(
            "request %s after %d tokens, %d searches: %s",
            live.request_id,
            live.num_known,
            live.num_alignments,
            "; ".join(facts),
            extra=about,
        )

    def _find_loss(self, live: LiveRequest, num_before: int, last: SentWindow) -> str | None:
        """Returns where output after the first tokens has something else than its window."""
        draft, node, position = last.draft, last.node, last.base
        while node != NO_PARENT:
            node, position = draft.parents[node], position + 1
        parents = list(draft.parents)
        if last.is_alive or position < num_before or last.node not in parents:
            return None
        expected = parents.index(last.node)
        place = self._name(live.prepared.sources, draft.positions[expected])
        came, wanted = self._text(live.output[position]), self._text(draft.token_ids[expected])
        return f"lost at {place}: {came} came, not {wanted}"

    def _describe(self, sources: Sources, draft: Draft) -> str:
        if not len(draft):
            return "proposes nothing"
        place, text = self._name(sources, draft.positions[0]), self._text(draft.token_ids[0])
        return f"proposes {len(draft)} tokens from {place}: {text}, chance {draft.values[0]:.2f}"

    def _text(self, token_id: int) -> str:
        return repr(self._texts[token_id]) if token_id < len(self._texts) else f"<{token_id}>"

    def _name(self, sources: Sources, position: int) -> str:
        """Returns the name of a position, as `Sources.positions` has them."""
        if position == NO_POSITION:
            return "the output's own text"
        if position < NO_POSITION:
            num_tokens = len(sources.token_ids) - sources.num_predicted - 1
            return f"token {num_tokens + position - NO_POSITION + 1} of the prompt"
        prediction = line = token = 1
        for token_id in sources.token_ids[: sources.positions.index(position)]:
            if token_id == SEPARATOR:
                prediction, line, token = prediction + 1, 1, 1
            elif token_id in self._newlines:
                line, token = line + 1, 1
            else:
                token += 1
        return f"prediction {prediction}, line {line}, token {token}"
