// The request that the form describes.

import { RequestError } from "./stream.js";

/** Largest size of a seed: of larger whole numbers JavaScript has not all. */
export const MAX_SEED = Number.MAX_SAFE_INTEGER;

/** Returns what keeps the form from being sent; null if nothing does. */
export function formError({ seed }) {
  if (Number.isSafeInteger(Number(seed))) return null;
  return new RequestError("invalid", `The seed must be a whole number from -${MAX_SEED} to ${MAX_SEED}.`, {
    param: "seed",
  });
}

/** Returns the body for the API. */
export function requestBody(form, model, { withPrediction = true } = {}) {
  return {
    ...chatBody(form, model, [], form.prompt),
    ...(withPrediction && form.prediction
      ? { prediction: { type: "content", content: form.prediction } }
      : {}),
  };
}

/** Returns the body that asks a question after earlier turns; those without an answer are left out. */
export function chatBody(form, model, turns, question) {
  const answered = turns.filter(({ run }) => run.content !== "");
  return {
    model,
    messages: [
      ...(form.system.trim() === "" ? [] : [{ role: "system", content: form.system }]),
      ...answered.flatMap(({ question: asked, run }) => [
        { role: "user", content: asked },
        { role: "assistant", content: run.content },
      ]),
      { role: "user", content: question },
    ],
    ...number("temperature", form.temperature),
    ...number("seed", form.seed),
    ...number("max_completion_tokens", form.maxTokens),
    ...number("num_speculative_tokens", form.maxDrafts),
  };
}

/** Returns the form with a seed: sampled answers are comparable only if they have the same. */
export function seededForm(form) {
  const isSampled = form.temperature.trim() === "" || Number(form.temperature) !== 0;
  if (!isSampled || form.seed.trim() !== "") return form;
  return { ...form, seed: String(Math.floor(Math.random() * MAX_SEED)) };
}

/** Returns the body with what the page shows besides the text. */
export function observedBody(body) {
  return {
    ...body,
    stream: true,
    stream_options: { include_usage: true },
    include_provenance: true,
    include_speculation: true,
  };
}

function number(name, text) {
  return text.trim() === "" ? {} : { [name]: Number(text) };
}
