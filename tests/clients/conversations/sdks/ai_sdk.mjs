// Vercel's AI SDK, by its two providers: node ai_sdk.mjs URL
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const options = { name: "optimist", baseURL: `${process.argv[2]}/v1`, apiKey: "none" };
const compatible = createOpenAICompatible({ ...options, includeUsage: true, supportsStructuredOutputs: true });
const plain = createOpenAICompatible(options);
const openai = createOpenAI(options);
const models = {
  "compatible": compatible("scripted"), "compatible, nothing set": plain("scripted"),
  "openai chat": openai.chat("scripted"), "openai responses": openai.responses("scripted"),
};
const Asked = z.object({ city: z.string(), days: z.int().min(1), took: z.iso.duration().optional() });
const Report = z.object({ city: z.string(), unit: z.enum(["c", "f"]), days: z.array(z.int()) });
const report = { city: "Oslo", unit: "c", days: [1, 2] };
const user = (content) => ({ role: "user", content });
const say = `[[say ${JSON.stringify(report)}]]`;

for (const [name, model] of Object.entries(models)) {
  // What it takes for stored it would only name.
  const store = { openai: { store: false } };
  const common = { model, maxRetries: 0, stopWhen: stepCountIs(5), maxOutputTokens: 1_000_000, providerOptions: store };
  const tools = {
    weather: tool({
      description: "Tells the weather.", inputSchema: Asked,
      execute: async ({ city, days }) => `rain in ${city} for ${days} days`,
    }),
  };
  const messages = [user('[[think It rains.]][[call weather {"city": "Oslo", "days": 2}]]')];
  const rain = "rain in Oslo for 2 days";

  test(`${name}: tools`, async () => {
    const first = await generateText({ ...common, tools, messages, system: "Be brief." });
    assert.equal(first.text, `The tools said: ${rain}.`);
    assert.equal(first.steps.length, 2);
    if (!name.startsWith("openai")) assert.equal(first.steps[0].reasoningText, "It rains.");
    const second = await generateText({ ...common, tools, messages: [...messages, ...first.responseMessages, user("[[recall]]")] });
    assert.equal(second.text, `user assistant tool assistant user assistant: ${rain}`);
  });

  test(`${name}: tools, streamed`, async () => {
    const first = streamText({ ...common, tools, messages, onError: () => {} });
    assert.equal(await first.text, `The tools said: ${rain}.`);
    const said = await first.responseMessages;
    const second = streamText({ ...common, tools, messages: [...messages, ...said, user("[[recall]]")], onError: () => {} });
    assert.match(await second.text, /assistant user assistant: rain in Oslo/);
    assert.equal((await second.usage).outputTokens > 0, name !== "compatible, nothing set");
  });

  test(`${name}: reasoning is asked for and goes back`, async () => {
    const providerOptions = { optimist: { reasoningEffort: "low" }, openai: { reasoningEffort: "low", reasoningSummary: "auto", store: false } };
    const thought = { role: "assistant", content: [{ type: "reasoning", text: "hm" }, { type: "text", text: "Hello." }] };
    const { text } = await generateText({ ...common, providerOptions, messages: [user("Hi"), thought, user("[[say fine]]")] });
    assert.equal(text, "fine");
  });

  test(`${name}: objects`, async () => {
    const { object } = await generateObject({ model, maxRetries: 0, schema: Report, prompt: say });
    assert.deepEqual(object, report);
    const streamed = streamObject({ model, maxRetries: 0, schema: Report, prompt: say, onError: () => {} });
    for await (const _part of streamed.fullStream);
    assert.deepEqual(await streamed.object, report);
    const { output } = await generateText({ model, maxRetries: 0, prompt: say, output: Output.object({ schema: Report }) });
    assert.deepEqual(output, report);
  });

  test(`${name}: predictions`, async () => {
    if (name.startsWith("openai")) return;
    const providerOptions = { optimist: { prediction: { type: "content", content: "fine" } } };
    assert.equal((await generateText({ ...common, providerOptions, prompt: "[[predicted]]" })).text, "fine");
  });

  test(`${name}: stop`, async () => {
    const stopSequences = name.includes("responses") ? undefined : ["a1", "b1", "c1", "d1", "e1", "f1", "g1"];
    const { text } = await generateText({ ...common, stopSequences, prompt: "[[say fine]]" });
    assert.equal(text, "fine");
  });
}
