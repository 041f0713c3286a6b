// What the page sends, the programs it shows, and its words.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

import { editsFor, exampleForm } from "../../services/gateway/optimist_gateway/api/page/static/js/examples.js";
import { observedBody, requestBody } from "../../services/gateway/optimist_gateway/api/page/static/js/request.js";
import { curlSnippet, pythonSnippet } from "../../services/gateway/optimist_gateway/api/page/static/js/snippets.js";
import { raceOutcome, raceSummary, seconds, sourceClass } from "../../services/gateway/optimist_gateway/api/page/static/js/words.js";

const FORM = {
  prompt: "It's \"quoted\" \\ $HOME `x`\n\ttab é 😀\u2028\n",
  prediction: "'''\nwhat\n\n",
  system: " \"Be\" brief.",
  temperature: "0",
  seed: "7",
  maxTokens: "100",
  maxDrafts: "4",
};
const URL = "http://localhost:8000/v1";

test("empty fields are left to the server", () => {
  const form = { ...FORM, prediction: "", system: " ", temperature: "", seed: " ", maxTokens: "", maxDrafts: "" };
  assert.deepEqual(requestBody(form, "m"), { model: "m", messages: [{ role: "user", content: FORM.prompt }] });
});

test("the page asks for what it shows", () => {
  const body = observedBody(requestBody(FORM, "m"));
  assert.ok(body.stream && body.include_provenance && body.include_speculation);
});

test("the shell reads the command as it is meant", () => {
  const body = requestBody(FORM, "m");
  const command = curlSnippet(body, URL, true).replace("curl", "show");
  const script = `show() { printf '%s\\0' "$@"; }\nOPTIMIST_API_KEY=secret\n${command}`;
  const { stdout } = spawnSync("bash", ["-c", script], { encoding: "utf8" });
  const words = stdout.split("\0");
  assert.deepEqual(words.slice(0, 6), ["-sN", `${URL}/chat/completions`, "-H", "Content-Type: application/json", "-H", "Authorization: Bearer secret"]);
  assert.deepEqual(JSON.parse(words[7]), body);
});

test("Python reads the program as it is meant", () => {
  const body = requestBody(FORM, "m");
  const stub = [
    "import json, sys, types",
    "def create(**options):",
    "    print(json.dumps(options)); raise SystemExit",
    "class OpenAI:",
    "    def __init__(self, **options):",
    "        print(json.dumps(options))",
    "        self.chat = types.SimpleNamespace(completions=types.SimpleNamespace(create=create))",
    "sys.modules['openai'] = types.SimpleNamespace(OpenAI=OpenAI)",
    "import os; os.environ['OPTIMIST_API_KEY'] = 'secret'",
  ].join("\n");
  const { stdout, stderr } = spawnSync("python3", ["-c", `${stub}\n${pythonSnippet(body, URL, true)}`], { encoding: "utf8" });
  assert.equal(stderr, "");
  const [client, request] = stdout.trim().split("\n").map((line) => JSON.parse(line));
  assert.deepEqual(client, { base_url: URL, api_key: "secret" });
  const { extra_body: extra, ...sent } = request;
  assert.deepEqual({ ...sent, ...extra }, body);
});

test("a key is never written out", () => {
  const body = requestBody(FORM, "m");
  for (const snippet of [curlSnippet, pythonSnippet]) assert.ok(!snippet(body, URL, false).includes("OPTIMIST_API_KEY"));
});

test("every example is complete and has a name of its own", () => {
  const edits = ["tiny-edit", "smollm2"].flatMap(editsFor);
  assert.equal(new Set(edits.map(({ id }) => id)).size, edits.length);
  for (const edit of edits) {
    const form = exampleForm(edit);
    assert.ok(edit.title && form.prompt.startsWith(`${edit.instruction}\n\n`));
  }
});

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
  assert.deepEqual(["prediction", "prompt", "ngram", "form", "eagle", "draft_model", "target"].map(sourceClass), [
    "prediction", "prompt", "ngram", "form", "drafter", "drafter", "target",
  ]);
});
