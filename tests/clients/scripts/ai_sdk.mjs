// Vercel's AI SDK against a running stack: node ai_sdk.mjs URL
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, streamText, tool } from "ai";

const optimist = createOpenAICompatible({
  name: "optimist", baseURL: `${process.argv[2]}/v1`, supportsStructuredOutputs: true, includeUsage: true,
});
const options = {
  model: optimist("tiny-edit"), temperature: 0, maxOutputTokens: 24, maxRetries: 0,
  prompt: "Rename `a` to `b`.\n\ndef f(a):\n    return a\n",
};

const whole = await generateText(options);
const prediction = { type: "content", content: "def f(a):\n    return a\n" };
const predicted = await generateText({ ...options, providerOptions: { optimist: { prediction } } });
assert.equal(predicted.text, whole.text);

const streamed = streamText(options);
assert.equal(await streamed.text, whole.text);
assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);

const schema = jsonSchema({
  type: "object", properties: { done: { type: "boolean" } }, required: ["done"], additionalProperties: false,
});
const formatted = await generateText({ ...options, maxOutputTokens: 200, output: Output.object({ schema }) });
assert.equal(typeof formatted.output.done, "boolean");

const called = await generateText({
  ...options, maxOutputTokens: 200, toolChoice: "required",
  tools: { rename: tool({ description: "Renames.", inputSchema: schema }) },
});
assert.equal(called.toolCalls[0].toolName, "rename");
assert.equal(typeof called.toolCalls[0].input.done, "boolean");

await assert.rejects(generateText({ ...options, topP: 7 }), /top_p/);
