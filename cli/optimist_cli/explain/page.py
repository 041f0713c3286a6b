"""The story of a request as a page for people."""

from collections.abc import Iterator

from optimist_cli.explain.log import NO_PARENT, Header, Proposal
from optimist_cli.explain.story import Jump, StepStory, Story, Summary
from optimist_cli.explain.text import Style, fit, visible
from optimist_cli.explain.window import LineIndex, Origin

MAX_BRANCHES = 3
_INDENT = "    "


def count(number: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def legend(style: Style) -> str:
    """Returns what the colours mean."""
    names = {
        Origin.PREDICTION: "from the prediction",
        Origin.PROMPT: "from the prompt",
        Origin.OWN_TEXT: "from the request's own text",
        Origin.MODEL: "the model's own",
    }
    return "  ".join(style.by_origin(name, origin) for origin, name in names.items())


def heading(summary: Summary, header: Header, style: Style) -> Iterator[str]:
    """Iterates over the lines above the story."""
    yield style.strong(fit(f"request {visible(header.request_id)}", style.width))
    yield from _opening(summary, header, style)
    yield legend(style)


def continuation(summary: Summary, header: Header, style: Style) -> Iterator[str]:
    """Iterates over the lines where a replica goes on with a log."""
    yield ""
    yield style.strong("opened again")
    yield from _opening(summary, header, style)


def _opening(summary: Summary, header: Header, style: Style) -> Iterator[str]:
    sources = (
        f"{count(summary.num_predictions, 'prediction')}: "
        f"{count(summary.num_predicted_lines, 'line')}, "
        f"{count(summary.num_predicted_tokens, 'token')}; "
        f"{count(summary.num_prompt_tokens, 'token')} of the prompt"
    )
    yield fit(sources, style.width)
    opened = f"proposer {visible(header.replica)}, opened {visible(header.opened)}"
    yield style.faint(fit(opened, style.width))


def step_block(step: StepStory, story: Story, style: Style) -> Iterator[str]:
    """Iterates over the lines of one step."""
    yield ""
    title = f"step {step.number}"
    facts = fit(f"  {_came(step)}  {step.microseconds:.0f} µs", style.width - len(title))
    yield style.strong(title) + facts
    yield from style.lines_by_origin(((piece.text, piece.origin) for piece in step.pieces), _INDENT)
    for line in _events(step, story):
        yield fit(f"  {line}", style.width)
    yield from _proposed(step, story.lines, style)


def step_detail(step: StepStory, lines: LineIndex, style: Style) -> Iterator[str]:
    """Iterates over the nodes of the tree that a step proposes."""
    proposal = step.proposal
    if proposal is None or not proposal.token_ids:
        return
    yield ""
    yield fit(f"  the output's last line: {_quoted(step.line_prefix)}", style.width)
    yield style.strong("  node  after  chance  token   text")
    for number, chain in enumerate(proposal.chains()):
        if number:
            yield ""
        for node in chain:
            yield fit(_node(proposal, node, lines), style.width)


def _node(proposal: Proposal, node: int, lines: LineIndex) -> str:
    parent = proposal.parents[node]
    after = "-" if parent == NO_PARENT else parent
    row = f"{node:>6} {after:>6} {proposal.values[node]:>7.3f} {proposal.token_ids[node]:>6}   "
    return f"{row}{_quoted(proposal.texts[node])}  {lines.name(proposal.positions[node])}"


def closing(summary: Summary, style: Style) -> Iterator[str]:
    """Iterates over the lines below the story."""
    yield ""
    yield style.strong("summary")
    wasted = summary.wasted_per_accepted
    jumps = summary.jumps
    facts = [
        f"{count(summary.output_tokens, 'token')} in {count(summary.steps, 'step')}: "
        f"{summary.tokens_per_step:.2f} a step",
        f"accepted {summary.accepted:,} ({summary.accepted_share:.0%}): "
        f"{summary.accepted_from_prediction:,} predicted, "
        f"{summary.accepted_from_prompt:,} from the prompt, "
        f"{summary.accepted_from_own_text:,} own text",
        f"{count(summary.windows, 'window')}; {count(summary.contradicted_tokens, 'token')} "
        "proposed in vain" + (f", {wasted:.2f} for each accepted" if wasted is not None else ""),
        f"{count(summary.alignments, 'alignment')}; "
        f"found its position again {count(sum(jumps.values()), 'time')}: "
        f"{jumps['forward']} forward, {jumps['back']} back, {jumps['same_line']} within the line",
        f"proposer's time {summary.proposer_us['p50']:.0f} µs (median), "
        f"{summary.proposer_us['p99']:.0f} µs (p99)",
    ]
    for fact in [*facts, *_remarks(summary)]:
        yield fit(f"  {fact}", style.width)


def _remarks(summary: Summary) -> Iterator[str]:
    if summary.missing_tokens:
        yield f"{count(summary.missing_tokens, 'output token')} of steps that are not in this log"
    if summary.damaged_documents:
        yield f"cut off: {count(summary.damaged_documents, 'line')} not whole and left out"
    if summary.end is None:
        yield "the log does not say that the request was closed"
    elif summary.end != "the request was closed":
        yield f"the log ends here: {visible(summary.end)}"


def _came(step: StepStory) -> str:
    origins = [piece.origin for piece in step.pieces]
    if not origins:
        return "no new tokens"
    parts = [f"{origins.count(origin)} {origin.value}" for origin in Origin if origin in origins]
    return f"{count(len(origins), 'token')}: {', '.join(parts)}"


def _events(step: StepStory, story: Story) -> Iterator[str]:
    if step.num_missing:
        yield f"{count(step.num_missing, 'token')} before these not in this log"
    if step.num_repeated:
        yield f"{count(step.num_repeated, 'token')} sent again"
    if step.num_replayed:
        yield f"taken over with {count(step.num_replayed, 'token')} that another replica observed"
    if step.jump is not None:
        yield _jump(step.jump, story)
    elif step.lost is not None:
        yield f"lost at {story.lines.name(step.lost)}"
    elif step.has_turned:
        yield "went on in a branch"


def _jump(jump: Jump, story: Story) -> str:
    start, end = story.lines.name(jump.start), story.lines.name(jump.end)
    way = story.direction(jump)
    if way == "same_line":
        return f"lost in {end}, found again in it" if jump.was_lost else f"moved within {end}"
    return (
        f"lost at {start}, found at {end}: {way}"
        if jump.was_lost
        else f"moved from {start} to {end}: {way}"
    )


def _proposed(step: StepStory, lines: LineIndex, style: Style) -> Iterator[str]:
    proposal = step.proposal
    if proposal is None:
        holds = f"{count(step.num_left, 'token')} of the window left"
        yield style.faint(f"  {holds if step.num_left else 'nothing proposed'}")
        return
    if not proposal.token_ids:
        yield style.faint("  proposes nothing")
        return
    path, *branches = proposal.chains()
    positions = [proposal.positions[node] for node in path]
    start = next((position for position in positions if position >= 0), positions[0])
    where = lines.name(start, with_total=True)
    head = f"proposes {count(len(proposal.token_ids), 'token')} from {where}"
    yield style.faint(fit(f"  {head}{_described(proposal, path)}", style.width))
    for branch in branches[:MAX_BRANCHES]:
        parent = proposal.parents[branch[0]]
        after = "the output"
        if parent != NO_PARENT:
            after = f"node {parent} {_quoted(proposal.texts[parent])}"
        text = f"or after {after}{_described(proposal, branch)}"
        yield style.faint(fit(f"    {text}", style.width))
    if len(branches) > MAX_BRANCHES:
        num_more = len(branches) - MAX_BRANCHES
        more = f"{count(num_more, 'branch', 'branches')} more (--step {step.number})"
        yield style.faint(f"    {more}")


def _quoted(text: str) -> str:
    return f'"{visible(text)}"'


def _described(proposal: Proposal, nodes: list[int]) -> str:
    return f", chance {proposal.values[nodes[0]]:.2f}: {_quoted(proposal.text(nodes))}"
