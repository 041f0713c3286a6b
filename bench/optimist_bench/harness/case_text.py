"""Generated source code and prose: the same text for the same seed, on every machine."""

import random


def _words(text: str) -> list[str]:
    return text.split()


_VERBS = _words("load parse merge split check build render send close refresh count collect")
_NOUNS = _words("record window header packet account label branch token region ledger cursor batch")
_STATES = _words("ready stale empty locked visible broken pending signed")
_FIELDS = _words("size name owner offset status weight parent created limit scope")
_PROSE = _words(
    "Meanwhile yesterday's weather stayed grey; nobody at the harbour minded much, since every "
    "boat had already come home before noon and the café was open!"
)


def function(number: int, seed: int) -> str:
    """Returns a function of some ten lines; its name is unique to its number."""
    rng = random.Random(f"{seed}:{number}")  # noqa: S311
    verb, noun, other = rng.choice(_VERBS), rng.choice(_NOUNS), rng.choice(_NOUNS)
    state, field, key = rng.choice(_STATES), rng.choice(_FIELDS), rng.choice(_FIELDS)
    limit = rng.randrange(2, 500)
    lines = [
        f"def {verb}_{noun}_{number}(session, {other}, {field}={limit}):",
        f'    """Returns the {noun} of each {state} {other}, at most `{field}` of them."""',
        f"    if {other} is None or not session.is_{state}:",
        f'        raise ValueError("no {other} to {verb}: {state} {field} expected")',
        "    found = []",
        f"    for item in session.{other}s({field}):",
        f"        if item.{key} > {rng.randrange(1, 90)} and item.{field} != {other}.{key}:",
        f"            found.append(item.{rng.choice(_FIELDS)})",
    ]
    if rng.random() < 0.5:
        lines.append(f'    session.log("{verb} {noun}", len(found))')
    if rng.random() < 0.3:
        lines += ["    if not found:", f"        return {other}.{field}"]
    return "\n".join([*lines, f"    return found[:{rng.choice(_FIELDS)}]", "", "", ""])


def functions(count: int, seed: int = 0) -> list[str]:
    """Returns different functions, each with two blank lines after it."""
    return [function(number, seed) for number in range(count)]


def prose(num_words: int, seed: int = 0) -> str:
    """Returns words that have nothing to do with the functions."""
    rng = random.Random(seed)  # noqa: S311
    return " ".join(rng.choice(_PROSE) for _ in range(num_words))


def unicode_lines(count: int) -> list[str]:
    """Returns lines in several scripts, with combining marks and emoji."""
    words = [
        "naïve",
        "Straße",
        "e\u0301te\u0301",
        "漢字かな",
        "Ελλάδα",
        "привет",
        "🙂🚀",
        "שלום",
        "ไทย",
    ]
    rng = random.Random(0)  # noqa: S311
    return [
        f"{number}: {' '.join(rng.choice(words) for _ in range(rng.randrange(4, 9)))}\n"
        for number in range(count)
    ]
