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

test("a refusal says what and where", async () => {
  const error = await failure((_request, response) => {
    response.writeHead(400).end('{"error": {"message": "too long", "param": "messages", "code": "context"}}');
  });
  assert.deepEqual(
    [error.kind, error.message, error.status, error.param, error.code],
    ["refused", "too long", 400, "messages", "context"],
  );
});

test("an overloaded server says when to come back", async () => {
  const error = await failure((_request, response) => {
    response.writeHead(429, { "retry-after": "3" }).end('{"error": {"message": "full"}}');
  });
  assert.deepEqual([error.kind, error.retryAfter], ["refused", "3"]);
});

test("a missing key is an error of its own", async () => {
  const error = await failure((_request, response) => response.writeHead(401).end('{"error": {"message": "no key"}}'));
  assert.deepEqual([error.kind, error.message], ["locked", "no key"]);
});

test("an answer that is no JSON is shown as it is", async () => {
  const error = await failure((_request, response) => response.writeHead(502).end("Bad Gateway"));
  assert.deepEqual([error.kind, error.message, error.status], ["refused", "Bad Gateway", 502]);
});

test("an error inside the stream is shown", async () => {
  const error = await failure((_request, response) => response.end('data: {"error": {"message": "gone", "code": "x"}}\n\n'));
  assert.deepEqual([error.kind, error.message, error.code], ["broken", "gone", "x"]);
});

test("a stream that ends too early is an error", async () => {
  const error = await failure((_request, response) => response.end('data: {"a": 1}\n\n'));
  assert.equal(error.kind, "broken");
});

test("a connection that breaks is an error", async () => {
  const error = await failure((_request, response) => {
    response.write('data: {"a": 1}\n\n', () => setTimeout(() => response.destroy(), 20));
  });
  assert.equal(error.kind, "broken");
});

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
