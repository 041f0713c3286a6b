import assert from "node:assert/strict";
import { test } from "node:test";

import { raceOutcome, raceSummary, seconds, sourceClass } from "../../services/gateway/optimist_gateway/api/page/static/js/words.js";

function run(status, text, time) {
  return { status, isRunning: status === "running", seconds: time, follower: { text } };
}

test("a race is decided when both have ended", () => {
  assert.equal(raceOutcome({ without: run("running", "a", 1), with: run("done", "a", 1) }), null);
  assert.deepEqual(raceOutcome({ without: run("stopped", "a", 1), with: run("done", "a", 1) }), { isFinished: false });
});

test("answers are compared to the last character", () => {
  const equal = { without: run("done", "abc", 4), with: run("done", "abc", 0.5) };
  assert.equal(raceSummary(equal), "8.0 times as fast with the prediction. Both answers are identical, character for character.");
  const longer = { without: run("done", "abc", 1), with: run("done", "abcd", 2) };
  assert.equal(raceSummary(longer), "0.50 times as fast with the prediction. The answers differ at character 4, as they may in 16 bits.");
});

test("short times are in milliseconds", () => {
  assert.deepEqual([0.0314, 0.9994, 1.234, 12.34, null].map(seconds), ["31 ms", "999 ms", "1.23 s", "12.3 s", "–"]);
});

test("all drafters look alike", () => {
  assert.deepEqual(["prediction", "prompt", "ngram", "eagle", "draft_model", "target"].map(sourceClass), [
    "prediction", "prompt", "ngram", "drafter", "drafter", "target",
  ]);
});
