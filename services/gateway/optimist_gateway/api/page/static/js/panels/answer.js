// What the model says.

import { useLayoutEffect, useRef } from "../../vendor/hooks.js";
import { html } from "../html.js";
import { sourceClass } from "../words.js";
import { AnswerText } from "./answer_text.js";
import { CopyButton } from "./copy_button.js";

const ENDS = { stop: "complete", length: "cut at the most tokens" };
const LEGEND = [
  ["prediction", "prediction"],
  ["prompt", "prompt"],
  ["ngram", "the request's own text"],
  ["form", "the form of the answer"],
  ["drafter", "drafter"],
  ["target", "the model itself"],
];

export function AnswerPanel({ run, follower }) {
  const panel = useRef(null);
  const isPredicted = run?.follower.points.length > 0;
  const isStarted = run?.follower.numTokens > 0;
  // On narrow screens it stands below what is seen.
  useLayoutEffect(() => {
    if (isStarted) panel.current.scrollIntoView({ block: "nearest" });
  }, [run, isStarted]);
  return html`
    <section class="panel" aria-labelledby="answer-title" ref=${panel}>
      <div class="panel-head">
        <h2 id="answer-title">It answers</h2>
        ${run && html`<span class="outcome" data-status=${run.status}>${outcome(run)}</span>`}
        ${run && !run.isRunning && html`<${CopyButton} text=${run.follower.text} what="the answer" />`}
      </div>
      ${run
        ? html`
          <${AnswerText} follower=${follower} isRunning=${run.isRunning} label="The answer" />
          <${Legend} sources=${[...seenSources(run.follower), isPredicted ? "prediction" : "prompt"]} />`
        : html`<p class="sheet empty">Run the request, and see where each word comes from.</p>`}
    </section>
  `;
}

export function outcome(run) {
  if (run.status === "running") return "streams";
  if (run.status === "failed") return "broke off";
  return run.status === "stopped" ? "stopped" : (ENDS[run.finishReason] ?? run.finishReason);
}

/** Returns the sources of what is seen of an answer. */
export function seenSources({ segments }) {
  return segments.filter(({ text }) => text !== "").map(({ source }) => source);
}

/** Names the looks that answers have; the model's own is always among them. */
export function Legend({ sources }) {
  const seen = new Set([...sources.map(sourceClass), "target"]);
  return html`
    <ul class="legend" aria-label="Where the answer comes from">
      ${LEGEND.filter(([name]) => seen.has(name)).map(
        ([name, label]) => html`<li><span class=${`source ${name}`}>${label}</span></li>`,
      )}
    </ul>
  `;
}
