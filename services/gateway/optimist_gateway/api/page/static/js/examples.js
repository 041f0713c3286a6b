// Requests to try, which the model that is served answers rightly.

import * as language from "./examples/language.js";
import * as tinyEdit from "./examples/tiny_edit.js";

// More than any of these answers has, should a model not know where to end.
const MAX_TOKENS = "512";

/** Returns the edits to try with a model, the one to begin with first. */
export function editsFor(model) {
  return family(model).EDITS;
}

/** Returns what to ask next: the beginnings of chats, or how one that was begun goes on. */
export function nextQuestions(model, asked) {
  const begun = family(model).CHATS.filter((chat) => asked.every((question, index) => question === chat[index]));
  return begun.map((chat) => chat[asked.length]).filter(Boolean);
}

/** Returns the form for an edit; what is predicted is the code as it was, if nothing else is said. */
export function exampleForm({ instruction, code, prediction = code }) {
  return {
    prompt: `${instruction}\n\n${code}`,
    prediction,
    system: "",
    temperature: "0",
    seed: "",
    maxTokens: MAX_TOKENS,
    maxDrafts: "",
  };
}

/** The bundled model is known by its name; others are language models. */
function family(model) {
  return /tiny-edit/i.test(model) ? tinyEdit : language;
}
