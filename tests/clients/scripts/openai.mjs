// The official Node client against a running stack: node openai.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = "tiny-edit";
const content = "Rename `a` to `b`.\n\ndef f(a):\n    return a\n";
const messages = [{ role: "user", content }];
const options = { model, messages, temperature: 0, max_tokens: 24 };

const whole = await client.chat.completions.create(options);
const prediction = { type: "content", content: "def f(a):\n    return a\n" };
const predicted = await client.chat.completions.create({ ...options, prediction });
assert.equal(predicted.choices[0].message.content, whole.choices[0].message.content);

let text = "";
let usage = null;
const stream = await client.chat.completions.create({
  ...options, prediction, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);

const completion = await client.completions.create({ model, prompt: "def", max_tokens: 2, echo: true });
assert.ok(completion.choices[0].text.startsWith("def"));

const response = await client.responses.create({ model, input: "Hello", max_output_tokens: 8 });
assert.equal(response.output[0].type, "message");

await assert.rejects(client.chat.completions.create({ ...options, temperature: 9 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "temperature");
  return true;
});
const models = await client.models.list();
assert.deepEqual(models.data.map((one) => one.id), [model]);
