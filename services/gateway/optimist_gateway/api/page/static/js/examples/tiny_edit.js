// For the bundled model, which edits code and knows nothing else (models/tiny-edit/README.md).

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
const OLD_RETRY = RETRY.replaceAll("delay", "wait")
  .replace(", timeout=10", "")
  .replace("        if", '        log.debug("asked for %s", url)\n        if')
  .replace('        print("attempt", attempt, "failed")\n', "");

export const EDITS = [
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

// The model reads the last message alone.
export const CHATS = [
  [
    `Rename \`width\` to \`breadth\`.\n\n${AREA}`,
    `Rename \`height\` to \`depth\`.\n\n${AREA.replaceAll("width", "breadth")}`,
  ],
  [`Insert the line \`check(url)\` before line 4.\n\n${RETRY}`],
];
