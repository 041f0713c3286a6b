"""What must hold of every answer, whatever it is compared with."""

from tests.chaos.load.answer import Answer, Choice, Failure
from tests.fuzz.draw import Drawn, Material

OWN_REASONS = ("grammar", "min_tokens", "structured_outputs", "response_format", "tools", "schema")


def fault_of(drawn: Drawn, answer: Answer, material: Material) -> str:
    """Says what is wrong with an answer that has ended; empty if nothing."""
    if answer.failure is not None:
        return _fault_of_failure(answer.failure)
    if not answer.is_complete:
        return f"not complete: {answer}"
    for index, choice in answer.choices.items():
        if fault := _fault_of_choice(drawn, choice, material):
            return f"choice {index}: {fault}"
    num_tokens = sum(len(one.token_ids) for one in answer.choices.values())
    echoed = 0 if "echo" not in drawn.case.body else None
    if echoed is not None and answer.completion_tokens != num_tokens:
        return f"completion_tokens {answer.completion_tokens}, and {num_tokens} came"
    return ""


def _fault_of_failure(failure: Failure) -> str:
    """An error has to say what of the request it is about."""
    is_own = any(reason in failure.message for reason in OWN_REASONS)
    return "" if is_own else f"an error that is not the request's own: {failure}"


def _fault_of_choice(drawn: Drawn, choice: Choice, material: Material) -> str:
    body, form = drawn.case.body, drawn.form
    if choice.num_ends != 1:
        return f"it ended {choice.num_ends} times"
    stops = set(body.get("stop_token_ids", []))
    ends = stops | (set() if body.get("ignore_eos") and form is None else material.end_token_ids)
    least, most = body.get("min_tokens", 0), body["max_tokens"]
    too_early = ends.intersection(choice.token_ids[:least])
    if too_early:
        return f"{sorted(too_early)} within the first {least} tokens: {choice.token_ids}"
    is_cut = choice.finish_reason == "length"
    num_tokens = len(choice.token_ids)
    if num_tokens < least or num_tokens > most or (is_cut and num_tokens != most):
        return f"{num_tokens} tokens of {least} to {most}, {choice.finish_reason}"
    if form is None or is_cut or "stop" in body or stops or "echo" in body:
        return ""
    if not form.fits(choice.text):
        return f"{choice.finish_reason}, and not of its form: {choice.text!r}"
    return ""
