"""The documents of a request's log: one about its sources, then one for each step.

A log is a stream of YAML documents. Each begins with `---` and ends with `...`, each on a line of
its own, so that a log can be appended to, and one that is cut off is read up to the cut.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby

from optimist_aligner.drafting.draft import NO_PARENT, Draft
from optimist_aligner.text.sources import NO_POSITION, Sources
from optimist_aligner.text.vocabulary import Vocabulary
from optimist_proposer.observing.record_lines import OutputLines, PredictedLines, split_predictions
from optimist_proposer.observing.record_text import line_values, quote, token_values

FORMAT = 2
"""Number of the format; the first line of a log tells it."""
_MAX_ID_CHARACTERS = 1000


def document(*values: str) -> bytes:
    """Returns a document with a value on each line."""
    return "\n".join(("---", *values, "...", "")).encode()


def end_document(reason: str) -> bytes:
    """Returns the document that ends a log."""
    return document(f"end: {quote(reason)}")


def digest_line(sources: Sources) -> str:
    """Returns the line of a header that tells whether sources are the same."""
    content = hashlib.sha256(sources.token_ids.tobytes())
    content.update(str(sources.num_predicted).encode())
    return f"sources: {quote(content.hexdigest()[:32])}"


class RequestRecord:
    """Writes what happens to one request.

    Attributes:
        num_steps: Steps so far; the number of the next one.
    """

    __slots__ = ("_lines", "_output", "_replica", "_request_id", "_vocabulary", "num_steps")

    def __init__(
        self,
        request_id: str,
        replica: str,
        sources: Sources,
        vocabulary: Vocabulary,
        num_steps: int = 0,
    ) -> None:
        """Takes the steps that an earlier record of the same log has."""
        self._request_id = request_id[:_MAX_ID_CHARACTERS]
        self._replica = replica
        self._vocabulary = vocabulary
        self._lines = PredictedLines(list(split_predictions(sources)), vocabulary)
        self._output = OutputLines(vocabulary)
        self.num_steps = num_steps

    def continuation(self, sources: Sources, opened: str) -> bytes:
        """Returns the header for a log that has the same sources already."""
        return document(*self._head(sources, opened))

    def header(self, sources: Sources, opened: str, max_bytes: int) -> bytes:
        """Returns the header, with the lines of the predictions.

        Args:
            sources: What the output may repeat.
            opened: The time, for people.
            max_bytes: Most bytes of lines; those behind are left out, which their numbers tell.
        """
        num_prompt_tokens = len(sources.token_ids) - sources.num_predicted
        values = [*self._head(sources, opened)]
        values.append(f"num_prompt_tokens: {max(num_prompt_tokens - 1, 0)}")
        values.append("predictions:" if self._lines.starts else "predictions: []")
        for index, prediction in enumerate(split_predictions(sources)):
            values.append(f"- num_tokens: {len(prediction)}")
            values.append(f"  num_lines: {len(self._lines.starts[index]) - 1}")
            values.append("  lines:")
            for line in self._predicted_lines(index, prediction):
                max_bytes -= len(line.encode()) + 1
                if max_bytes < 0:
                    break
                values.append(line)
            if values[-1] == "  lines:":
                values[-1] = "  lines: []"
        return document(*values)

    def step(
        self,
        token_ids: "array[int]",
        num_known: int,
        draft: Draft | None,
        seconds: float,
        num_alignments: int,
    ) -> bytes:
        """Returns the document of the next step; see `RequestLogs.step`."""
        position = num_known - len(token_ids)
        completed = self._output.take(token_ids, position)
        values = [
            f"step: {self.num_steps}",
            f"replica: {quote(self._replica)}",
            f"position: {position}",
            f"output: {{{token_values(self._vocabulary.token_texts, token_ids)}}}",
            "completed_lines:" if completed else "completed_lines: []",
        ]
        for number, text in completed:
            shown = "null" if number is None else number
            values.append(f"- {{number: {shown}, text: {quote(text)}}}")
        values.append(f"line_prefix: {quote(self._output.prefix)}")
        values.extend(self._proposal(draft))
        values.append(f"num_alignments: {num_alignments}")
        values.append(f"microseconds: {max(seconds, 0.0) * 1e6:.1f}")
        self.num_steps += 1
        return document(*values)

    def _head(self, sources: Sources, opened: str) -> tuple[str, ...]:
        return (
            f"optimist_request_log: {FORMAT}",
            digest_line(sources),
            f"request_id: {quote(self._request_id)}",
            f"replica: {quote(self._replica)}",
            f"opened: {quote(opened)}",
        )

    def _predicted_lines(self, index: int, prediction: "array[int]") -> Iterator[str]:
        first = self._lines.first_position(index)
        for number, (start, end) in enumerate(self._lines.lines(index), 1):
            tokens = line_values(self._vocabulary.token_texts, prediction[start:end])
            yield f"  - {{number: {number}, position: {first + start}, {tokens}}}"

    def _proposal(self, draft: Draft | None) -> Iterator[str]:
        if draft is None:
            yield "proposal: null"
            return
        chains = split_chains(draft)
        path = chains[0][1] if chains else []
        yield "proposal:"
        yield f"  place: {self._place(draft, path)}"
        yield f"  path: {{{self._chain(draft, path)}}}"
        yield "  branches:" if len(chains) > 1 else "  branches: []"
        for behind, nodes in chains[1:]:
            yield f"  - {{behind: {behind}, {self._chain(draft, nodes)}}}"

    def _place(self, draft: Draft, path: Sequence[int]) -> str:
        """Returns where in the predictions a path is first; null for nowhere."""
        for node in path:
            if draft.positions[node] >= 0:
                prediction, line = self._lines.place(draft.positions[node])
                return f"{{prediction: {prediction}, line: {line}}}"
        return "null"

    def _chain(self, draft: Draft, nodes: Sequence[int]) -> str:
        token_ids = [draft.token_ids[node] for node in nodes]
        positions = position_runs([draft.positions[node] for node in nodes])
        values = ", ".join(f"{draft.values[node]:.4f}" for node in nodes)
        tokens = token_values(self._vocabulary.token_texts, token_ids)
        return f"{tokens}, positions: {positions}, values: [{values}]"


def split_chains(draft: Draft) -> list[tuple[int, list[int]]]:
    """Returns the likeliest path of a tree and then its branches, each a chain of nodes.

    With each chain comes the node that it departs behind, NO_PARENT for none, counted in the order
    in which the nodes stand in the chains.
    """
    first_children: dict[int, int] = {}
    for node, parent in enumerate(draft.parents):
        first_children.setdefault(parent, node)
    numbers = {NO_PARENT: NO_PARENT}
    chains: list[tuple[int, list[int]]] = []
    for node, parent in enumerate(draft.parents):
        if node in numbers:
            continue
        chain: list[int] = []
        next_node: int | None = node
        while next_node is not None:
            numbers[next_node] = len(numbers) - 1
            chain.append(next_node)
            next_node = first_children.get(next_node)
        chains.append((numbers[parent], chain))
    return chains


def position_runs(positions: Sequence[int]) -> list[list[int]]:
    """Returns positions as runs, [first, length] each; NO_POSITION stays the same in a run."""
    offsets = (
        (position, NO_POSITION if position == NO_POSITION else position - index)
        for index, position in enumerate(positions)
    )
    runs = []
    for (_, is_predicted), group in groupby(
        offsets, lambda pair: (pair[1], pair[0] != NO_POSITION)
    ):
        members = [position for position, _ in group]
        runs.append([members[0] if is_predicted else NO_POSITION, len(members)])
    return runs
