// The official Node client: node openai_sdk.mjs URL
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = "scripted";
const chat = client.chat.completions;
const Weather = z.object({ city: z.string(), days: z.int().min(1).max(7) });
// The helpers for formats say `strict`, for which their patterns are too much.
const Open = Weather.extend({ sky: z.emoji().optional(), took: z.iso.duration().optional() });
const Report = z.object({ city: z.string(), link: z.url(), unit: z.enum(["c", "f"]), note: z.string().nullable() });
const report = { city: "Oslo", link: "https://example.org/a", unit: "c", note: null };
const say = { role: "user", content: `[[say ${JSON.stringify(report)}]]` };
const call = { role: "user", content: '[[think It rains.]][[call weather {"city": "Oslo", "days": 2}]]' };
const recall = { role: "user", content: "[[recall]]" };
const tool = { type: "function", function: { name: "weather", parameters: z.toJSONSchema(Open) } };
const halved = "cut in the middle \ud83d";

async function converse(ask, tools) {
  const messages = [{ role: "developer", content: "Be brief." }, call];
  const called = await ask({ messages, tools });
  assert.equal(called.reasoning_content, "It rains.");
  assert.deepEqual(JSON.parse(called.tool_calls[0].function.arguments), { city: "Oslo", days: 2 });
  messages.push(called, { role: "tool", tool_call_id: called.tool_calls[0].id, content: "rain" });
  const said = await ask({ messages, tools });
  assert.equal(said.content, "The tools said: rain.");
  const again = await ask({ messages: [...messages, said, recall], tools });
  assert.match(again.content, /user assistant tool assistant user assistant: rain$/);
}

test("create", () => converse(async (options) => (await chat.create({ model, ...options })).choices[0].message, [tool]));

test("stream", () => converse((options) => chat.stream({ model, ...options }).finalMessage(), [tool]));

test("parse of tools", () => converse(
  async (options) => (await chat.parse({ model, ...options })).choices[0].message,
  [zodFunction({ name: "weather", parameters: Weather })],
));

test("runTools", async () => {
  const asked = [];
  const runner = chat.runTools({
    model, messages: [call],
    tools: [{ type: "function", function: {
      name: "weather", parse: JSON.parse, parameters: z.toJSONSchema(Open), function: (one) => { asked.push(one); return "rain"; },
    } }],
  });
  assert.equal(await runner.finalContent(), "The tools said: rain.");
  assert.deepEqual(asked, [{ city: "Oslo", days: 2 }]);
});

test("parsed formats go back", async () => {
  const answer = await chat.parse({ model, messages: [say], response_format: zodResponseFormat(Report, "report") });
  const { message } = answer.choices[0];
  assert.deepEqual(message.parsed, report);
  const again = await chat.create({ model, messages: [say, message, recall] });
  assert.equal(again.choices[0].message.content, "user assistant user assistant: ");
});

test("halves of emojis", async () => {
  const messages = [{ role: "user", content: `${halved} [[say fine]]` }];
  assert.equal((await chat.create({ model, messages })).choices[0].message.content, "fine");
});

async function respond(ask, tools) {
  const input = [call];
  const called = await ask({ input, tools });
  const [thoughts, made] = called.output;
  assert.equal(thoughts.content[0].text, "It rains.");
  assert.deepEqual(JSON.parse(made.arguments), { city: "Oslo", days: 2 });
  input.push(...called.output, { type: "function_call_output", call_id: made.call_id, output: "rain" });
  const said = await ask({ input, tools });
  assert.equal(said.output_text, "The tools said: rain.");
  const again = await ask({ input: [...input, ...said.output, recall], tools });
  assert.equal(again.output_text, "user assistant tool assistant user assistant: rain");
}

const flat = { type: "function", name: "weather", parameters: z.toJSONSchema(Open), strict: false };

test("responses", () => respond((options) => client.responses.create({ model, ...options }), [flat]));

test("responses, streamed", () => respond((options) => client.responses.stream({ model, ...options }).finalResponse(), [flat]));

test("responses, parsed tools", () => respond(
  (options) => client.responses.parse({ model, ...options }), [zodResponsesFunction({ name: "weather", parameters: Weather })],
));

test("responses, parsed text goes back", async () => {
  const answer = await client.responses.parse({ model, input: [say], text: { format: zodTextFormat(Report, "report") } });
  assert.deepEqual(answer.output_parsed, report);
  const again = await client.responses.create({ model, input: [say, ...answer.output, recall] });
  assert.equal(again.output_text, "user assistant user assistant: ");
});

test("errors name the field", () => assert.rejects(
  chat.create({ model, messages: [call], temperature: 9 }), (error) => error.status === 400 && error.param === "temperature",
));
