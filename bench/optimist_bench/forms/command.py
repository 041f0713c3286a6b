"""The command: all kinds of answers, in every style, drafted in each way."""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field
from tokenizers import Tokenizer

from optimist_aligner import Aligner
from optimist_aligner.text.sources import Sources
from optimist_bench.forms.drafting import Drafter, ForcedDrafter
from optimist_bench.forms.simulator import Run, simulate
from optimist_bench.harness.command import format_table, names, run_command
from optimist_bench.harness.kinds import STYLES, Kind, load_kinds
from optimist_bench.harness.pair import load_tokenizer, load_vocabulary
from optimist_common.grammar import matching_tokenizer
from optimist_common.settings import CommaSeparated, ServiceSettings
from optimist_worker.core.form import Style
from optimist_worker.grammar.matcher import Matcher, compile_grammar

SHARES = (0.01, 0.03)
"""Costs of a draft, as shares of a pass."""
WAYS: Mapping[str, tuple[str | None, str | None]] = {
    "nothing": (None, None),
    "prompt": ("prompt", None),
    "prediction": ("prediction", None),
    "forced": (None, "forced"),
    "form": (None, "form"),
    "form+prompt": ("prompt", "form"),
    "form+prediction": ("prediction", "form"),
}
"""What the aligner reads, and what drafts from the form; a prediction comes with the prompt, as it
does where it is served."""
_KINDS = load_kinds()


class FormsSettings(ServiceSettings):
    """Simulates structured answers without a model, drafted from their form and from elsewhere.

    A pass costs 1 + C per drafted token, for two C. --json prints one line of JSON instead.
    """

    section: ClassVar[str] = "bench_forms"

    tokenizer: str = Field(
        "models/tiny-edit",
        description="tokenizer file of Hugging Face's library, or directory with tokenizer.json",
    )
    kinds: Annotated[CommaSeparated, names(tuple(_KINDS))] = Field(
        [], description="kinds of answers, with commas; all if empty"
    )
    window: int = Field(64, ge=1, le=4096, description="most drafted tokens a pass")


class Language:
    """A tokenizer, and what is made of it."""

    def __init__(self, path: str) -> None:
        directory = Path(path)
        file = directory / "tokenizer.json" if directory.is_dir() else directory
        self.tokenizer: Tokenizer = load_tokenizer(str(file))
        added = self.tokenizer.get_added_tokens_decoder()
        self.special = {token.content: token_id for token_id, token in added.items()}
        # Not every file says which token ends an answer: here it is one more than all.
        self.end = 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())
        self.grammar_tokenizer = matching_tokenizer(
            self.tokenizer.to_str(), self.end + 1, [self.end]
        )
        self.end_only = np.zeros(-(-(self.end + 1) // 32) * 4, np.uint8)
        self.end_only[self.end // 8] = 1 << self.end % 8
        self.aligner = Aligner(load_vocabulary(self.tokenizer))

    def encode(self, text: str) -> "array[int]":
        """Returns the tokens of a text."""
        return array("i", self.tokenizer.encode(text, add_special_tokens=False).ids)


class Form:
    """The grammar of a kind of answers, compiled once."""

    def __init__(self, language: Language, kind: Kind) -> None:
        self._language, self._grammar = language, kind.grammar(language.special)
        self._compiled = compile_grammar(language.grammar_tokenizer, self._grammar)

    def allows(self, token_ids: list[int]) -> bool:
        """Returns whether an answer follows the grammar and is complete."""
        matcher = self._compiled.deep_copy()
        return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()

    def drafter(self, name: str, style: Style | None, prompt: Sequence[int]) -> Drafter:
        """Returns what drafts from the form; `name` is `forced` or `form`.

        The style is that of an answer before, as a worker keeps it.
        """
        if name == "forced":
            return ForcedDrafter(self._compiled)
        language = self._language
        return Matcher(
            language.grammar_tokenizer,
            self._grammar,
            self._compiled,
            language.end_only,
            style=style,
            prompt=prompt,
        )


class Answer:
    """An answer of a kind in a style, and what it is drafted from."""

    def __init__(self, language: Language, kind: Kind, style: str, form: Form) -> None:
        text, predicted = kind.texts(style)
        self.kind, self.style, self._form = kind.name, style, form
        self.truth = [*language.encode(text), language.end]
        self._predicted = language.encode(predicted)
        self._prompt = prompt = language.encode(kind.prompt)
        predictions: dict[str, list[array[int]]] = {"prompt": [], "prediction": [self._predicted]}
        self._references = {
            name: language.aligner.prepare(Sources(texts, prompt))
            for name, texts in predictions.items()
        }

    def follows(self) -> bool:
        """Returns whether both the answer and the predicted one follow the grammar."""
        return all(map(self._form.allows, (self.truth[:-1], self._predicted.tolist())))

    def run(self, way: str, window: int, share: float, styles: dict[str, Style]) -> Run:
        """Simulates the answer drafted in one of WAYS, after those whose styles were learned."""
        source, name = WAYS[way]
        follower = None if source is None else self._references[source].follow()
        form = None
        if name is not None:
            read = self._prompt if source is not None else ()
            form = self._form.drafter(name, styles.get(self.style), read)
        run = simulate(self.truth, follower, form, window, share)
        if isinstance(form, Matcher):
            styles[self.style] = form.style
        return run


def main(arguments: list[str]) -> int:
    """Runs the benchmark; returns the exit code: 1 if an answer does not follow its grammar."""
    return run_command(FormsSettings, arguments, measure, describe)


def measure(settings: FormsSettings) -> dict[str, Any]:
    """Simulates all answers and returns the report."""
    answers = list(_answers(settings))
    wrong = [f"{one.kind}, {one.style}" for one in answers if not one.follows()]
    return {
        "tokenizer": settings.tokenizer,
        "window": settings.window,
        "kinds": len({one.kind for one in answers}),
        "answers": len(answers),
        "output_tokens": sum(len(one.truth) for one in answers),
        "all_right": not wrong,
        "wrong": wrong,
        "by_share": {
            str(share): {way: _compare(answers, way, settings.window, share) for way in WAYS}
            for share in SHARES
        },
    }


def _answers(settings: FormsSettings) -> Iterator[Answer]:
    language = Language(settings.tokenizer)
    for name in settings.kinds or _KINDS:
        form = Form(language, _KINDS[name])
        for style in STYLES:
            yield Answer(language, _KINDS[name], style, form)


def _compare(answers: Sequence[Answer], way: str, window: int, share: float) -> dict[str, Any]:
    """Returns the figures of a way: of all answers, by style, and of the kind with the least."""
    styles: dict[str, Style] = {}
    total, by_style, by_kind = Run(), defaultdict[str, Run](Run), defaultdict[str, Run](Run)
    for answer in answers:
        run = answer.run(way, window, share, styles)
        for each in (total, by_style[answer.style], by_kind[answer.kind]):
            each.add(run)
    speedups = {kind: _figures(run, share)["speedup"] for kind, run in by_kind.items()}
    worst = min(speedups, key=speedups.__getitem__)
    return {
        **_figures(total, share),
        "by_style": {style: _figures(run, share) for style, run in by_style.items()},
        "speedup_by_kind": speedups,
        "worst_kind": worst,
        "worst_speedup": speedups[worst],
    }


def _figures(run: Run, share: float) -> dict[str, float]:
    return {
        "tokens_per_pass": round(run.num_tokens / run.num_passes, 4),
        "speedup": round(run.num_tokens / run.cost(share), 4),
        "passes": run.num_passes,
        "drafted": run.num_drafted,
        "accepted": run.num_accepted,
        "form_drafted": run.num_form_drafted,
        "form_accepted": run.num_form_accepted,
    }


def describe(report: dict[str, Any]) -> str:
    """Returns a table: a row for each way and share, speedups by style, the worst kind."""
    header = ["share", "way", "tokens/pass", "speedup", *STYLES, "drafted", "accepted", "form's"]
    rows = [
        [
            *(share, way, one["tokens_per_pass"], one["speedup"]),
            *(one["by_style"][style]["speedup"] for style in STYLES),
            *(one["drafted"], one["accepted"], one["form_accepted"]),
            *(one["worst_speedup"], one["worst_kind"]),
        ]
        for share, ways in report["by_share"].items()
        for way, one in ways.items()
    ]
    wrong = [f"{one} does not follow its grammar" for one in report["wrong"]]
    return "\n".join([format_table([*header, "worst", "kind"], rows), *wrong])
