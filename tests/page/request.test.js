import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

import { editsFor, exampleForm, nextQuestions } from "../../services/gateway/optimist_gateway/api/page/static/js/examples.js";
import { chatBody, observedBody, requestBody } from "../../services/gateway/optimist_gateway/api/page/static/js/request.js";
import { curlSnippet, pythonSnippet } from "../../services/gateway/optimist_gateway/api/page/static/js/snippets.js";

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

test("a chat sends what was answered before", () => {
  const turns = [
    { question: "one?", run: { content: "1" } },
    { question: "refused", run: { content: "" } },
  ];
  const { messages, prediction } = chatBody(FORM, "m", turns, "two?");
  assert.deepEqual(messages, [
    { role: "system", content: FORM.system },
    { role: "user", content: "one?" },
    { role: "assistant", content: "1" },
    { role: "user", content: "two?" },
  ]);
  assert.equal(prediction, undefined);
});

test("a race differs in the prediction only", () => {
  const { prediction, ...rest } = requestBody(FORM, "m");
  assert.deepEqual(prediction, { type: "content", content: FORM.prediction });
  assert.deepEqual(requestBody(FORM, "m", { withPrediction: false }), rest);
  assert.equal(rest.num_speculative_tokens, 4);
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

test("a chat that was begun as an example goes on as it does", () => {
  const first = nextQuestions("m", []);
  const begun = first.find((question) => nextQuestions("m", [question]).length === 1);
  const [next] = nextQuestions("m", [begun]);
  assert.ok(next && !first.includes(next));
  assert.deepEqual(nextQuestions("m", [begun, "something else"]), []);
});
