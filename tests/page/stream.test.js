// What a server streams, and how that may fail.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import { EventParser, streamChunks } from "../../services/gateway/optimist_gateway/api/page/static/js/stream.js";

async function serve(answer) {
  const server = createServer(answer);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, close: () => server.close() };
}

async function collect(url, options) {
  const chunks = [];
  for await (const chunk of streamChunks(url, {}, options)) chunks.push(chunk);
  return chunks;
}

async function failure(answer, options) {
  const server = await serve(answer);
  try {
    await collect(server.url, options);
  } catch (error) {
    return error;
  } finally {
    server.close();
  }
  return assert.fail("no error");
}

test("events come out the same wherever the text is cut", () => {
  const text = ': comment\r\n\r\ndata: {"a": 1}\r\n\r\ndata: one\ndata:two\n\nevent: x\ndata: [DONE]\n\n';
  for (let cut = 0; cut <= text.length; cut += 1) {
    const parser = new EventParser();
    const events = [...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))];
    assert.deepEqual(events, ['{"a": 1}', "one\ntwo", "[DONE]"]);
  }
});

test("chunks are read across borders of characters, up to the end", async () => {
  const bytes = Buffer.from('data: {"text": "😀"}\n\ndata: [DONE]\n\n');
  const server = await serve((_request, response) => {
    response.write(bytes.subarray(0, 17));
    setTimeout(() => response.end(bytes.subarray(17)), 20);
  });
  assert.deepEqual(await collect(server.url), [{ text: "😀" }]);
  server.close();
});

test("a key is sent, and only if there is one", async () => {
  const seen = [];
  const server = await serve((request, response) => {
    seen.push(request.headers.authorization);
    response.end("data: [DONE]\n\n");
  });
  await collect(server.url);
  await collect(server.url, { apiKey: "secret" });
  assert.deepEqual(seen, [undefined, "Bearer secret"]);
  server.close();
});

// What a server does, and what is known of the error then.
const FAILURES = {
  "a refusal says what and where": [
    (response) => response.writeHead(400).end('{"error": {"message": "too long", "param": "messages", "code": "context"}}'),
    { kind: "refused", message: "too long", status: 400, param: "messages", code: "context" },
  ],
  "an overloaded server says when to come back": [
    (response) => response.writeHead(429, { "retry-after": "3" }).end('{"error": {"message": "full"}}'),
    { kind: "refused", retryAfter: "3" },
  ],
  "a missing key is an error of its own": [
    (response) => response.writeHead(401).end('{"error": {"message": "no key"}}'),
    { kind: "locked", message: "no key" },
  ],
  "an answer that is no JSON is shown as it is": [
    (response) => response.writeHead(502).end("Bad Gateway"),
    { kind: "refused", message: "Bad Gateway", status: 502 },
  ],
  "an error inside the stream is shown": [
    (response) => response.end('data: {"error": {"message": "gone", "code": "x"}}\n\n'),
    { kind: "broken", message: "gone", code: "x" },
  ],
  "a stream that ends too early is an error": [(response) => response.end('data: {"a": 1}\n\n'), { kind: "broken" }],
  "a connection that breaks is an error": [
    (response) => response.write('data: {"a": 1}\n\n', () => setTimeout(() => response.destroy(), 20)),
    { kind: "broken" },
  ],
};

for (const [name, [answer, expected]] of Object.entries(FAILURES)) {
  test(name, async () => {
    const error = await failure((_request, response) => answer(response));
    assert.deepEqual(Object.fromEntries(Object.keys(expected).map((key) => [key, error[key]])), expected);
  });
}

test("a server that is not there is an error", async () => {
  const server = await serve(() => {});
  server.close();
  await assert.rejects(collect(server.url), { kind: "unreachable" });
});

test("a stop is no error of the server", async () => {
  const controller = new AbortController();
  const error = await failure(
    (_request, response) => {
      response.write('data: {"a": 1}\n\n', () => controller.abort());
    },
    { signal: controller.signal },
  );
  assert.equal(error.name, "AbortError");
});
