// Reads a streamed completion: server-sent events over fetch.

/** What a header can carry. */
const SENDABLE = /^[\x21-\x7e]*$/;

/** What went wrong, in words for people. */
export class RequestError extends Error {
  /**
   * @param {"unreachable" | "refused" | "locked" | "broken" | "invalid"} kind nothing answered; the server
   *   said no; it wants a key; the stream ended too early; it was not sent.
   */
  constructor(kind, message, { status = null, param = null, code = null, retryAfter = null } = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.param = param;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** Cuts a stream of text into the data of its events; lines end in LF or CR LF. */
export class EventParser {
  #rest = "";
  #data = [];

  push(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    const events = [];
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line === "" && this.#data.length > 0) {
        events.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
    return events;
  }
}

/** Yields the chunks of a streamed answer; throws RequestError, or AbortError when the signal says so. */
export async function* streamChunks(url, body, { apiKey = "", signal } = {}) {
  const response = await post(url, body, apiKey, signal);
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { value, done } = await read(reader);
      if (done) throw new RequestError("broken", "The stream ended before the answer did.");
      for (const data of parser.push(decoder.decode(value, { stream: true }))) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new RequestError("broken", chunk.error.message, chunk.error);
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Gets JSON from the server; throws RequestError. */
export async function getJson(url, apiKey = "") {
  const response = await send(url, { headers: headers(apiKey) });
  return response.json();
}

async function post(url, body, apiKey, signal) {
  return send(url, {
    method: "POST",
    headers: { ...headers(apiKey), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

async function send(url, options) {
  let response;
  try {
    response = await fetch(url, { ...options, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("unreachable", "The server does not answer. Is it running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

function headers(apiKey) {
  // Fetch throws for others what it throws when nothing answers.
  if (!SENDABLE.test(apiKey)) {
    throw new RequestError("locked", "This key cannot be sent: it has a space or a character beyond ASCII.");
  }
  return apiKey ? { authorization: `Bearer ${apiKey}` } : {};
}

async function refusal(response) {
  const text = await response.text();
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // A proxy in between answers in its own words.
    error = { message: text.slice(0, 200) };
  }
  const message = error.message || `The server answered with status ${response.status}.`;
  return new RequestError(response.status === 401 ? "locked" : "refused", message, {
    status: response.status,
    param: error.param ?? null,
    code: error.code ?? null,
    retryAfter: response.headers.get("retry-after"),
  });
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("broken", "The connection broke before the answer was complete.");
  }
}
