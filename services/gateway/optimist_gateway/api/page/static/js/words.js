// Numbers and results in words.

import { runFigures } from "./run.js";

const SOURCES = {
  prediction: "from the prediction",
  prompt: "from the prompt",
  ngram: "from the request's own text",
  form: "from the form of the answer",
  draft_model: "from the draft model",
  quantised: "from the quantised drafter",
  medusa: "from the Medusa heads",
  eagle: "from the EAGLE heads",
  target: "by the model itself",
};

/** Returns the words for a source. */
export function sourceName(source) {
  return SOURCES[source] ?? `from ${source}`;
}

/** Returns which of the six looks a source has. */
export function sourceClass(source) {
  return ["prediction", "prompt", "ngram", "form", "target"].includes(source) ? source : "drafter";
}

export function seconds(value) {
  if (value === null) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

export function decimal(value, digits = 1) {
  return value === null ? "–" : value.toFixed(digits);
}

export function percent(value) {
  return value === null ? "–" : `${Math.round(value * 100)} %`;
}

export function plural(count, word, many = `${word}s`) {
  return `${count} ${count === 1 ? word : many}`;
}

/** Returns the figures of an answer in one line. */
export function figuresLine(run) {
  const { numTokens, numPasses, tokensPerPass, acceptedShare, seconds: time } = runFigures(run);
  return (
    `${plural(numTokens, "token")} in ${plural(numPasses, "pass", "passes")} (${decimal(tokensPerPass)} a pass), ` +
    `${percent(acceptedShare)} accepted from drafts, ${seconds(time)}`
  );
}

/** Returns what is said when an answer has ended. */
export function runSummary(run) {
  if (run.status === "failed") return `It failed: ${run.error.message} Until then: ${figuresLine(run)}.`;
  return `${run.status === "stopped" ? "Stopped after" : "Done:"} ${figuresLine(run)}.`;
}

/** Returns the outcome of a race; null while it runs. */
export function raceOutcome({ without, with: predicted }) {
  if (without.isRunning || predicted.isRunning) return null;
  if (without.status !== "done" || predicted.status !== "done") return { isFinished: false };
  const texts = [without.follower.text, predicted.follower.text];
  return {
    isFinished: true,
    factor: without.seconds / predicted.seconds,
    isIdentical: texts[0] === texts[1],
    differsAt: texts[0] === texts[1] ? null : firstDifference(...texts),
  };
}

/** Returns what is said when a race has ended. */
export function raceSummary(race) {
  const outcome = raceOutcome(race);
  if (!outcome.isFinished) return "The race did not finish.";
  const speed = `${outcome.factor.toFixed(outcome.factor < 0.95 ? 2 : 1)} times as fast with the prediction.`;
  const texts = outcome.isIdentical
    ? "Both answers are identical, character for character."
    : `The answers differ at character ${outcome.differsAt + 1}, as they may in 16 bits.`;
  return `${speed} ${texts}`;
}

function firstDifference(one, other) {
  let index = 0;
  while (one[index] === other[index]) index += 1;
  return index;
}
