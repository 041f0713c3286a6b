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

function promptStates(follower) {
  return promptParts(follower).map(({ start, end, state }) => [
    follower.promptPoints.slice(start, end).join(""),
    state,
  ]);
}

function follow(prediction, ...chunks) {
  const follower = new Follower({ prediction });
  for (const provenance of chunks) follower.push({ provenance });
  return follower;
}

function states(follower) {
  return predictionParts(follower).map(({ start, end, state }) => [
    follower.points.slice(start, end).join(""),
    state,
  ]);
}

test("what is taken is used, what the model says as predicted is the same, the rest lies ahead", () => {
  const follower = follow(PREDICTION, [said("def")], [predicted(" f(", 3), said("width")]);
  assert.deepEqual(states(follower), [
    ["def", "same"],
    [" f(", "used"],
    ["width", "same"],
    ["):\n    return width\n", "ahead"],
  ]);
  assert.deepEqual(follower.anchors, []);
  assert.equal(follower.cursor, 11);
  assert.equal(follower.text, "def f(width");
});

test("after a difference the place is found again, and what was left out is skipped", () => {
  const follower = follow(PREDICTION, [predicted("def f(", 0), said("size")], [predicted("):\n    return ", 11)]);
  assert.deepEqual(states(follower), [
    ["def f(", "used"],
    ["width", "skipped"],
    ["):\n    return ", "used"],
    ["width\n", "ahead"],
  ]);
  assert.deepEqual(follower.anchors, [{ at: 11, left: 6, pass: 2 }]);
});

test("tokens that the model said while the place was lost belong to it when they stand before it", () => {
  const follower = follow(PREDICTION, [predicted("def f(", 0), said("size")], [said("):")], [predicted("\n", 13)]);
  assert.deepEqual(states(follower).slice(1, 4), [
    ["width", "skipped"],
    ["):", "same"],
    ["\n", "used"],
  ]);
});

test("the end of another word is not taken for the end of the predicted one", () => {
  const follower = follow(PREDICTION, [predicted("def f(", 0), said("breadth")], [predicted("):", 11)]);
  assert.deepEqual(states(follower)[1], ["width", "skipped"]);
});

test("an insertion skips nothing and is a place found again", () => {
  const follower = follow("ab\ncd\n", [predicted("ab\n", 0), said("new\n")], [predicted("cd\n", 3)]);
  assert.deepEqual(countStates(predictionParts(follower)), { used: 6, same: 0, skipped: 0, ahead: 0 });
  assert.deepEqual(follower.anchors, [{ at: 3, left: 3, pass: 2 }]);
});

test("a place further up can be found too", () => {
  const follower = follow("ab\ncd\n", [predicted("cd\n", 3)], [predicted("ab\n", 0)]);
  assert.equal(follower.cursor, 3);
  assert.deepEqual(follower.anchors.map(({ at, left }) => [at, left]), [[3, 0], [0, 6]]);
  assert.equal(countStates(predictionParts(follower)).used, 6);
});

test("drafts of other sources are accepted, and followed where they agree with the prediction", () => {
  const draft = { source: "ngram", text: "def", num_tokens: 1 };
  const follower = follow(PREDICTION, [draft, said(" f(")]);
  assert.deepEqual(states(follower)[0], ["def f(", "same"]);
  assert.deepEqual(follower.passes, [{ numTokens: 2, numAccepted: 1, source: "ngram", from: 0, to: 6, text: "def f(" }]);
});

test("places count characters beyond the basic plane once", () => {
  const follower = follow("😀ab", [predicted("😀", 0)], [said("a")]);
  assert.equal(follower.cursor, 2);
  assert.deepEqual(states(follower), [["😀", "used"], ["a", "same"], ["b", "ahead"]]);
});

test("a prediction is read with LF for CR LF and CR, as the server does", () => {
  const follower = follow("a\r\nb\rc", [predicted("a\nb\nc", 0)]);
  assert.deepEqual(states(follower), [["a\nb\nc", "used"]]);
});

test("text that was held back adds no pass and no place", () => {
  const first = { ...predicted("", 0), prediction: { index: 0, start: 0, end: 3 } };
  const later = { source: "prediction", text: "def", num_tokens: 0 };
  const follower = follow(PREDICTION, [first], [later, said(" f(")]);
  assert.equal(follower.passes.length, 2);
  assert.deepEqual(follower.anchors, []);
  assert.deepEqual(follower.ranges[0], { start: 0, end: 3, state: "used", from: 0, to: 3, pass: 1 });
  assert.equal(follower.numTokens, 3);
});

test("text that comes without tokens belongs to the pass before it", () => {
  const later = { source: "target", text: "f(", num_tokens: 0 };
  const follower = follow(PREDICTION, [said("def")], [said(" ")], [later]);
  assert.deepEqual(follower.passes.map(({ from, to, text }) => [from, to, text]), [[0, 3, "def"], [3, 6, " f("]]);
});

test("predicted text whose place is unknown counts as accepted all the same", () => {
  const follower = follow(PREDICTION, [{ source: "prediction", text: "size", num_tokens: 1 }]);
  assert.equal(follower.numAccepted, 1);
  assert.equal(countStates(predictionParts(follower)).used, 0);
});

test("a chunk without tokens is no pass", () => {
  const follower = new Follower({ prediction: PREDICTION });
  follower.push({ delta: { role: "assistant", content: "" } });
  assert.deepEqual(follower.passes, []);
});

test("an answer can be followed up to a pass", () => {
  const choices = [{ delta: { content: "" } }, { provenance: [said("def")] }, { provenance: [predicted(" f(", 3)] }];
  const run = { texts: { prediction: PREDICTION }, choices };
  assert.equal(followPasses(run, 0).text, "");
  assert.equal(followPasses(run, 1).text, "def");
  assert.equal(followPasses(run, 2).text, "def f(");
});

test("what was read from the prompt is repeated there", () => {
  const follower = new Follower({ prompt: "Fix 😀: def f(a)" });
  assert.equal(promptCursor(follower), -1);
  follower.push({ provenance: [read("😀: ", 4), read("f(", 11), said("b")] });
  assert.deepEqual(promptStates(follower), [
    ["Fix ", "other"],
    ["😀: ", "repeated"],
    ["def ", "other"],
    ["f(", "repeated"],
    ["a)", "other"],
  ]);
  assert.equal(promptCursor(follower), 13);
  assert.deepEqual(joinSegments(follower.segments).map(({ source, text }) => [source, text]), [
    ["prompt", "😀: "],
    ["prompt", "f("],
    ["target", "b"],
  ]);
  assert.deepEqual(follower.passes.map(({ source, numAccepted }) => [source, numAccepted]), [["prompt", 4]]);
});

test("what the prompt repeats of the prediction is followed there too", () => {
  const follower = new Follower({ prediction: PREDICTION, prompt: PREDICTION });
  follower.push({ provenance: [read("def f(", 0), said("size")] });
  assert.deepEqual(states(follower)[0], ["def f(", "same"]);
  assert.deepEqual(promptStates(follower)[0], ["def f(", "repeated"]);
});

test("text from the prompt that was held back comes later under the same place", () => {
  const follower = new Follower({ prompt: "def f(a)" });
  follower.push({ provenance: [{ ...read("def", 0), text: "" }] });
  follower.push({ provenance: [{ source: "ngram", text: "def", num_tokens: 0 }, said(" ")] });
  assert.deepEqual(follower.promptRanges, [{ start: 0, end: 3, state: "repeated", from: 0, to: 3, pass: 1 }]);
  assert.deepEqual(follower.segments.at(-2).source, "prompt");
  follower.push({ provenance: [{ source: "ngram", text: "x", num_tokens: 1 }] });
  follower.push({ provenance: [{ source: "ngram", text: "y", num_tokens: 0 }] });
  assert.deepEqual(follower.segments.at(-1).source, "ngram");
});

test("what the chat template adds stands nowhere in the prompt that is shown", () => {
  const follower = new Follower({ prompt: "def" });
  const segment = { source: "ngram", text: "user", num_tokens: 1, prompt: { token_start: 1, token_end: 2 } };
  follower.push({ provenance: [segment] });
  assert.equal(follower.segments[0].source, "prompt");
  assert.deepEqual(promptStates(follower), [["def", "other"]]);
});

test("neighbours of one source, place and pass are shown as one", () => {
  const follower = follow(PREDICTION, [predicted("de", 0), predicted("f", 2), said("x")]);
  const joined = joinSegments(follower.segments);
  assert.deepEqual(joined.map(({ text, source }) => [text, source]), [["def", "prediction"], ["x", "target"]]);
  assert.deepEqual([joined[0].from, joined[0].to, joined[0].start, joined[0].end], [0, 3, 0, 3]);
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
