// Requests to try: some for any language model, the others for the bundled one (models/tiny-edit/README.md).

const MINUTES = `The comittee meets on the first Monday of every month in the town hall. Members recieve the agenda one week before the meeting. Visitors may speak for three minutes each. The minutes are published on the website within ten days, together with the list of desicions. Anyone who wants to correct them writes to the secretary before the next meeting.
`;

const ACCOUNT = `class Account:
    """Keeps the entries of an account."""

    def __init__(self, owner):
        self.owner = owner
        self.entries = []

    def add(self, amount, note=""):
        self.entries.append((amount, note))
        return self.balance()

    def balance(self):
        total = 0
        for amount, note in self.entries:
            total += amount
        return total
`;

const AREA = `def area(width, height):
    """Return the area."""
    if width < 0 or height < 0:
        raise ValueError("no negative lengths")
    return width * height
`;

const RETRY = `def fetch(client, url, retries=3):
    """Return the body of a page."""
    delay = 1
    for attempt in range(retries):
        response = client.get(url, timeout=10)
        if response.status == 200:
            return response.body
        print("attempt", attempt, "failed")
        sleep(delay)
        delay = delay * 2
    raise ConnectionError(url)
`;

const LEDGER = `class Ledger:
    """Keeps the entries of an account."""

    def __init__(self, owner):
        self.owner = owner
        self.entries = []
        self.closed = False

    def add(self, amount, note=""):
        if self.closed:
            raise ValueError("the ledger is closed")
        self.entries.append((amount, note))
        return self.balance()

    def balance(self):
        total = 0
        for amount, note in self.entries:
            total += amount
        return total

    def largest(self):
        best = None
        for amount, note in self.entries:
            if best is None or amount > best:
                best = amount
        return best

    def close(self):
        self.closed = True
        return self.balance()
`;

// An earlier state of RETRY: a line less, another one more, other names.
const OLD_RETRY = `def fetch(client, url, retries=3):
    """Return the body of a page."""
    wait = 1
    for attempt in range(retries):
        response = client.get(url)
        log.debug("asked for %s", url)
        if response.status == 200:
            return response.body
        sleep(wait)
        wait = wait * 2
    raise ConnectionError(url)
`;

const BUNDLED_MODEL = "tiny-edit";
// More than any of these answers has, should a model not know where to end.
const MAX_TOKENS = "512";

const FOR_ANY_MODEL = [
  { id: "spelling", title: "Correct a text", instruction: "Correct the spelling of this text:", code: MINUTES },
  {
    id: "docstrings",
    title: "Document a class",
    instruction: "Write this Python class with a docstring for each method:",
    code: ACCOUNT,
  },
  {
    id: "nothing-expected",
    title: "Without a prediction",
    instruction: "Correct the spelling of this text:",
    code: MINUTES,
    prediction: "",
  },
];

const FOR_BUNDLED_MODEL = [
  { id: "long", title: "Rename in a whole class", instruction: "Rename `amount` to `sum` everywhere.", code: LEDGER },
  { id: "rename", title: "Rename a parameter", instruction: "Rename `width` to `breadth`.", code: AREA },
  { id: "insert", title: "Insert a line", instruction: "Insert the line `check(url)` before line 4.", code: RETRY },
  { id: "delete", title: "Delete a line", instruction: "Delete line 8.", code: RETRY },
  { id: "constant", title: "Change a number", instruction: "Change `10` to `30`.", code: RETRY },
  { id: "docstring", title: "Add a docstring", instruction: 'Add the docstring `"""Close the book."""`.', code: `def close(self):
    self.closed = True
    return self.balance()
` },
  {
    id: "outdated",
    title: "An outdated prediction",
    instruction: "Repeat the code unchanged.",
    code: RETRY,
    prediction: OLD_RETRY,
  },
];

export const EXAMPLE_GROUPS = [
  { label: "For any language model", examples: FOR_ANY_MODEL },
  { label: `For ${BUNDLED_MODEL}`, examples: FOR_BUNDLED_MODEL },
];

export const EXAMPLES = EXAMPLE_GROUPS.flatMap(({ examples }) => examples);

/** Returns the example to begin with; a model that is not known yet counts as the bundled one. */
export function firstExample(model) {
  return (model === "" || model === BUNDLED_MODEL ? FOR_BUNDLED_MODEL : FOR_ANY_MODEL)[0];
}

/** Returns the form for an example; what is predicted is the code as it was, if nothing else is said. */
export function exampleForm({ instruction, code, prediction = code }) {
  return {
    prompt: `${instruction}\n\n${code}`,
    prediction,
    temperature: "0",
    seed: "",
    maxTokens: MAX_TOKENS,
    maxDrafts: "",
  };
}
