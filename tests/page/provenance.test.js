// Where each part of an answer stands in its prediction and in its prompt.
import assert from "node:assert/strict";
import { test } from "node:test";

import {
  countStates,
  Follower,
  followPasses,
  joinSegments,
  predictionParts,
  promptCursor,
  promptParts,
} from "../../services/gateway/optimist_gateway/api/page/static/js/provenance.js";

const PREDICTION = "def f(width):\n    return width\n";

function said(text) {
  return { source: "target", text, num_tokens: 1 };
}

function predicted(text, start, numTokens = 2) {
  const prediction = { index: 0, start, end: start + Array.from(text).length };
  return { source: "prediction", text, num_tokens: numTokens, prediction };
}

function read(text, start, message = 0) {
  const prompt = { message, start, end: start + Array.from(text).length };
  return { source: "ngram", text, num_tokens: 2, prompt };
}

function follow(texts, ...chunks) {
  const follower = new Follower(texts);
  for (const provenance of chunks) follower.push({ provenance });
  return follower;
}

function states(follower) {
  return predictionParts(follower).map(({ start, end, state }) => [follower.points.slice(start, end).join(""), state]);
}

function promptStates(follower) {
  return promptParts(follower).map(({ start, end, state }) => [follower.promptPoints.slice(start, end).join(""), state]);
}

// What was pushed, and the states of the first parts of the prediction.
const FOLLOWED = {
  "what is taken is used, what the model says as predicted is the same, the rest lies ahead": [
    PREDICTION,
    [[said("def")], [predicted(" f(", 3), said("width")]],
    [["def", "same"], [" f(", "used"], ["width", "same"], ["):\n    return width\n", "ahead"]],
  ],
  "after a difference the place is found again, and what was left out is skipped": [
    PREDICTION,
    [[predicted("def f(", 0), said("size")], [predicted("):\n    return ", 11)]],
    [["def f(", "used"], ["width", "skipped"], ["):\n    return ", "used"], ["width\n", "ahead"]],
  ],
  "tokens that the model said while the place was lost belong to it when they stand before it": [
    PREDICTION,
    [[predicted("def f(", 0), said("size")], [said("):")], [predicted("\n", 13)]],
    [["def f(", "used"], ["width", "skipped"], ["):", "same"], ["\n", "used"]],
  ],
  "the end of another word is not taken for the end of the predicted one": [
    PREDICTION,
    [[predicted("def f(", 0), said("breadth")], [predicted("):", 11)]],
    [["def f(", "used"], ["width", "skipped"]],
  ],
  "drafts of other sources are followed where they agree with the prediction": [
    PREDICTION,
    [[{ source: "ngram", text: "def", num_tokens: 1 }, said(" f(")]],
    [["def f(", "same"]],
  ],
  "places count characters beyond the basic plane once": [
    "😀ab",
    [[predicted("😀", 0)], [said("a")]],
    [["😀", "used"], ["a", "same"], ["b", "ahead"]],
  ],
  "a prediction is read with LF for CR LF and CR, as the server does": [
    "a\r\nb\rc",
    [[predicted("a\nb\nc", 0)]],
    [["a\nb\nc", "used"]],
  ],
};

for (const [name, [prediction, chunks, expected]] of Object.entries(FOLLOWED)) {
  test(name, () => assert.deepEqual(states(follow({ prediction }, ...chunks)).slice(0, expected.length), expected));
}

test("a place is found again behind an insertion and further up", () => {
  const prediction = "ab\ncd\n";
  const inserted = follow({ prediction }, [predicted("ab\n", 0), said("new\n")], [predicted("cd\n", 3)]);
  assert.deepEqual(countStates(predictionParts(inserted)), { used: 6, same: 0, skipped: 0, ahead: 0 });
  assert.deepEqual(inserted.anchors, [{ at: 3, left: 3, pass: 2 }]);
  const moved = follow({ prediction }, [predicted("cd\n", 3)], [predicted("ab\n", 0)]);
  assert.equal(moved.cursor, 3);
  assert.deepEqual(moved.anchors.map(({ at, left }) => [at, left]), [[3, 0], [0, 6]]);
});

test("text that was held back adds no pass and no place", () => {
  const first = { ...predicted("", 0), prediction: { index: 0, start: 0, end: 3 } };
  const later = { source: "prediction", text: "def", num_tokens: 0 };
  const follower = follow({ prediction: PREDICTION }, [first], [later, said(" f(")]);
  assert.deepEqual([follower.passes.length, follower.anchors, follower.numTokens], [2, [], 3]);
  assert.deepEqual(follower.ranges[0], { start: 0, end: 3, state: "used", from: 0, to: 3, pass: 1 });
  const end = { source: "target", text: "f(", num_tokens: 0 };
  const { passes } = follow({ prediction: PREDICTION }, [said("def")], [said(" ")], [end]);
  assert.deepEqual(passes.map(({ from, to, text }) => [from, to, text]), [[0, 3, "def"], [3, 6, " f("]]);
});

test("predicted text whose place is unknown counts as accepted all the same", () => {
  const follower = follow({ prediction: PREDICTION }, [{ source: "prediction", text: "size", num_tokens: 1 }]);
  assert.equal(follower.numAccepted, 1);
  assert.equal(countStates(predictionParts(follower)).used, 0);
});

test("an answer can be followed up to a pass; a chunk without tokens is none", () => {
  const choices = [{ delta: { content: "" } }, { provenance: [said("def")] }, { provenance: [predicted(" f(", 3)] }];
  const run = { texts: { prediction: PREDICTION }, choices };
  assert.deepEqual([0, 1, 2].map((number) => followPasses(run, number).text), ["", "def", "def f("]);
});

test("what was read from the prompt is repeated there, and followed in the prediction", () => {
  const follower = new Follower({ prompt: "Fix 😀: def f(a)", prediction: "😀: f(" });
  assert.equal(promptCursor(follower), -1);
  follower.push({ provenance: [read("😀: ", 4), read("f(", 11), said("b")] });
  assert.deepEqual(promptStates(follower), [
    ["Fix ", "other"], ["😀: ", "repeated"], ["def ", "other"], ["f(", "repeated"], ["a)", "other"],
  ]);
  assert.deepEqual(states(follower), [["😀: f(", "same"]]);
  assert.equal(promptCursor(follower), 13);
  const joined = joinSegments(follower.segments).map(({ source, text }) => [source, text]);
  assert.deepEqual(joined, [["prompt", "😀: "], ["prompt", "f("], ["target", "b"]]);
  assert.deepEqual(follower.passes.map(({ source, numAccepted }) => [source, numAccepted]), [["prompt", 4]]);
});

test("text from the prompt that was held back comes later under the same place", () => {
  const follower = follow(
    { prompt: "def f(a)" },
    [{ ...read("def", 0), text: "" }],
    [{ source: "ngram", text: "def", num_tokens: 0 }, said(" ")],
  );
  assert.deepEqual(follower.promptRanges, [{ start: 0, end: 3, state: "repeated", from: 0, to: 3, pass: 1 }]);
  assert.equal(follower.segments.at(-2).source, "prompt");
  follower.push({ provenance: [{ source: "ngram", text: "x", num_tokens: 1 }] });
  follower.push({ provenance: [{ source: "ngram", text: "y", num_tokens: 0 }] });
  assert.equal(follower.segments.at(-1).source, "ngram");
});

test("what the chat template adds stands nowhere in the prompt that is shown", () => {
  const segment = { source: "ngram", text: "user", num_tokens: 1, prompt: { token_start: 1, token_end: 2 } };
  const follower = follow({ prompt: "def" }, [segment]);
  assert.equal(follower.segments[0].source, "prompt");
  assert.deepEqual(promptStates(follower), [["def", "other"]]);
});

test("parts cover the prediction exactly, whatever comes", () => {
  let seed = 7;
  const random = (below) => {
    seed = (seed * 48271) % 2147483647;
    return seed % below;
  };
  const text = "abcde".repeat(8);
  for (let round = 0; round < 200; round += 1) {
    const follower = new Follower({ prediction: text });
    for (let pass = 0; pass < 6; pass += 1) {
      const start = random(30);
      const length = 1 + random(9);
      follower.push({ provenance: [predicted(text.slice(start, start + length), start), said(text[random(40)])] });
      const parts = predictionParts(follower);
      assert.equal(parts[0].start, 0);
      parts.slice(1).forEach((part, index) => assert.equal(part.start, parts[index].end));
      assert.equal(parts.at(-1).end, text.length);
      assert.ok(parts.some((part) => part.start === follower.cursor) || follower.cursor === text.length);
    }
  }
});
