"""Grammars of answers after thoughts, followed by llguidance."""

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from optimist_gateway.core.answer.thinking import FORMATS, ThinkingFormat, begin_thinking
from optimist_gateway.core.request import (
    ChoiceContent,
    Content,
    JsonContent,
    LarkContent,
    RegexContent,
    Structure,
    ToolUse,
)
from optimist_gateway.structure.check_child import check_grammar
from optimist_gateway.structure.grammars import grammar
from optimist_gateway.structure.thinking_grammar import after_thinking
from optimist_gateway.structure.tool_format import HERMES, ToolFormat
from tests.gateway.fake_scheduler import EOS
from tests.gateway.structure.test_grammar import FUNCTIONS, GOOD, NUMBER
from tests.gateway.structure.test_tool_calls import every_form, written

LARK = LarkContent('start: WORD ("," WORD)+ "}" last?\nWORD: /[a-z]{1,6}/\nlast: %json {}')


class Follows:
    """Tells whether a grammar has a text, with the tags as tokens of a kind or as plain text."""

    def __init__(self, plain: Backend, form: ThinkingFormat, kind: str) -> None:
        self._backend = Backend.from_str(plain.to_str())
        tags = [AddedToken(tag, normalized=False) for tag in form.tags]
        if kind != "plain":
            add = self._backend.add_special_tokens
            (add if kind == "special" else self._backend.add_tokens)(tags)
        size = self._backend.get_vocab_size()
        self._tokenizer = LLTokenizer(self._backend.to_str(), n_vocab=size, eos_token=[EOS])
        is_token = kind == "special" or (kind == "added" and form.opening.startswith("<"))
        ids = {tag: self._backend.token_to_id(tag) for tag in form.tags if is_token}
        self.ids = {tag: token_id for tag, token_id in ids.items() if token_id is not None}
        self.form = form

    def __call__(self, source: str, text: str, prompt: str = "") -> bool:
        begun = begin_thinking(self.form, prompt.replace("(", self.form.opening))
        assert begun is not None
        source = after_thinking(source, begun, self.ids)
        assert check_grammar(source, self._tokenizer) == ""
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(source), log_level=0)
        text = text.replace("(", self.form.opening).replace(")", self.form.closing)
        token_ids = self._backend.encode(text).ids
        return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


@pytest.fixture(scope="module", params=["plain", "added", "special"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[FORMATS[0], FORMATS[2]], ids=lambda form: form.opening)
def follows(request: pytest.FixtureRequest, backend: Backend, kind: str) -> Follows:
    return Follows(backend, request.param, kind)


CONTENTS: list[tuple[Content, str, str]] = [
    (JsonContent(NUMBER, is_lenient=False), '{"a": 1}', '{"a": "x"}'),
    (RegexContent("[a-c]+/"), "abc/", "abd/"),
    (ChoiceContent(["yes", "no"]), "no", "maybe"),
    (LARK, "a,b}{}", "a}"),
]


@pytest.mark.parametrize(("content", "good", "bad"), CONTENTS)
def test_a_form_begins_after_thoughts(
    follows: Follows, content: Content, good: str, bad: str
) -> None:
    source = grammar(Structure(content), HERMES, {})
    for thoughts in ("(Well, {x} <tool_call>\n)", "(\n\n)\n\n", f"({good})\n", "( [ ) \n"):
        assert follows(source, thoughts + good)
        assert follows(source, thoughts.removeprefix("(") + good, "(\n")
        assert not follows(source, thoughts + bad)
        assert not follows(source, thoughts.removeprefix("(") + bad, "(\n")
    # The model need not think, but what it has begun ends.
    assert follows(source, good)
    assert not follows(source, good, "(\n")
    assert not follows(source, "(" + good)
    # A model that begins with white space would have to think then.
    assert not follows(source, "\n(a)" + good)
    assert not follows(source, f"(a) X{good}")


@every_form
def test_calls_come_after_thoughts(follows: Follows, form: ToolFormat) -> None:
    call, wrong = written(form, GOOD), written(form, [("f", '{"a": "x"}')])
    thoughts = f"(I say {form.marker} or {wrong})\n\n"
    maybe, required = (
        grammar(Structure(None, ToolUse(FUNCTIONS, is_required, is_parallel=True)), form, {})
        for is_required in (False, True)
    )
    for source in (maybe, required):
        assert follows(source, thoughts + call)
        assert follows(source, thoughts.removeprefix("(") + call, "(\n")
        assert follows(source, call)
        assert not follows(source, thoughts + wrong)
        assert not follows(source, thoughts.removeprefix("(") + wrong, "(\n")
    for text in ("Hello", "{", "", "Hello ((", "\n"):
        assert follows(maybe, thoughts + "x" + text) == ("((" not in text or not follows.ids)
        assert not follows(required, thoughts + "x" + text)
    assert follows(maybe, "Hello")
    assert not follows(required, "Hello")
    both = Structure(CONTENTS[0][0], ToolUse(FUNCTIONS, is_required=False, is_parallel=True))
    source = grammar(both, form, {})
    assert follows(source, thoughts + '{"a": 1}')
    assert follows(source, thoughts + call)
    assert not follows(source, thoughts + "Hello")


def test_a_tag_that_is_a_token_is_not_spelled(backend: Backend) -> None:
    """What reads the answer would take it for the end of thoughts."""
    follows = Follows(backend, FORMATS[0], "special")
    source = grammar(Structure(RegexContent("[a-c]+")), HERMES, {})
    begun = begin_thinking(FORMATS[0], "<think>\n")
    assert begun is not None
    source = after_thinking(source, begun, follows.ids)
    matcher = LLMatcher(follows._tokenizer, LLMatcher.grammar_from_lark(source), log_level=0)
    spelled = backend.encode("So</think> Hello").ids
    assert len(spelled) > matcher.try_consume_tokens(spelled) > 0
