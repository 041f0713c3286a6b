// For language models: a small one, SmolLM2-135M-Instruct, answers each of them rightly.

const MINUTES = `The committee meets on the first Monday of every month in the town hall. Members recieve the agenda one week before the meeting. Visitors may speak for three minutes each. The minutes are published on the website within ten days, together with the list of desicions. Anyone who wants to correct them writes to the secretary before the next meeting.`;

const PERSON =
  '{"name": "Anna Berg", "age": 30, "city": "Berlin", "email": "anna@example.org", "languages": ["German", "English"]}';

const OLD_PERSON = `{
  "name": "Anna Schmidt",
  "age": 28,
  "city": "Berlin",
  "country": "Germany",
  "email": "anna@example.org",
  "languages": ["German", "English"]
}`;

const MEAN = `def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)`;

const CORRECT = "Correct the spelling of this text:";
const FORMAT = "Format this JSON with one field per line:";

export const EDITS = [
  { id: "spelling", title: "Correct a text", instruction: CORRECT, code: MINUTES },
  { id: "nothing-expected", title: "Without a prediction", instruction: CORRECT, code: MINUTES, prediction: "" },
  { id: "format", title: "Format JSON", instruction: FORMAT, code: PERSON },
  { id: "outdated-json", title: "An outdated prediction", instruction: FORMAT, code: PERSON, prediction: OLD_PERSON },
  { id: "simplify", title: "Simplify a function", instruction: "Simplify this Python function:", code: MEAN },
];

export const CHATS = [
  [`${FORMAT}\n\n${PERSON}`, "Change the age to 31.", "Change the city to Munich."],
  ["What is the capital of France?", "And of Italy?", "And of Spain?"],
  ["Write a Python function `square(x)` that returns the square of x.", "Now write `cube(x)`."],
];
