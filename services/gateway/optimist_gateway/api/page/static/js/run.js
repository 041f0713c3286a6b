// One request in progress, and what came of it.

import { Follower } from "./provenance.js";
import { observedBody } from "./request.js";
import { RequestError, streamChunks } from "./stream.js";

/** Streams one answer and keeps its account; `onChange` is called at every step. */
export class Run {
  /** @type {"running" | "done" | "stopped" | "failed"} */
  status = "running";
  error = null;
  finishReason = null;
  usage = null;
  /** What the model answers, without its thoughts. */
  content = "";
  /** The choices of all chunks, to go through the passes again. */
  choices = [];
  #controller = new AbortController();
  #startedAt = performance.now();
  #firstTokenAt = null;
  #endedAt = null;

  constructor(url, body, apiKey, onChange) {
    const { messages, prediction } = body;
    /** What the answer is followed through: the last message is its prompt. */
    this.texts = {
      prediction: prediction?.content ?? "",
      prompt: messages.at(-1).content,
      message: messages.length - 1,
    };
    this.follower = new Follower(this.texts);
    this.ended = this.#stream(url, body, apiKey, onChange);
  }

  stop() {
    this.#controller.abort();
  }

  get isRunning() {
    return this.status === "running";
  }

  /** Seconds since the request was sent, or that it took. */
  get seconds() {
    return ((this.#endedAt ?? performance.now()) - this.#startedAt) / 1000;
  }

  /** Seconds to the first token; null before. */
  get secondsToFirstToken() {
    return this.#firstTokenAt === null ? null : (this.#firstTokenAt - this.#startedAt) / 1000;
  }

  async #stream(url, body, apiKey, onChange) {
    try {
      const signal = this.#controller.signal;
      for await (const chunk of streamChunks(url, observedBody(body), { apiKey, signal })) {
        this.#take(chunk);
        onChange();
      }
      this.status = "done";
    } catch (error) {
      if (error.name === "AbortError") {
        this.status = "stopped";
      } else if (error instanceof RequestError) {
        this.status = "failed";
        this.error = error;
      } else {
        this.status = "failed";
        this.error = new RequestError("broken", "The server sent what this page cannot read.");
        console.error(error);
      }
    }
    this.#endedAt = performance.now();
    onChange();
  }

  #take(chunk) {
    this.usage = chunk.usage ?? this.usage;
    for (const choice of chunk.choices) {
      this.choices.push(choice);
      this.follower.push(choice);
      this.content += choice.delta?.content ?? "";
      this.finishReason = choice.finish_reason ?? this.finishReason;
    }
    if (this.#firstTokenAt === null && this.follower.numTokens > 0) {
      this.#firstTokenAt = performance.now();
    }
  }
}

/** Returns the numbers to show for a run. */
export function runFigures(run) {
  const { numTokens, numAccepted, passes } = run.follower;
  const numPasses = run.usage?.speculation?.num_passes ?? passes.length;
  return {
    numTokens,
    numPasses,
    tokensPerPass: numPasses ? numTokens / numPasses : null,
    acceptedShare: numTokens ? numAccepted / numTokens : null,
    seconds: run.seconds,
    tokensPerSecond: numTokens ? numTokens / run.seconds : null,
    secondsToFirstToken: run.secondsToFirstToken,
  };
}
