// What the model says.

import { html } from "../html.js";
import { sourceClass } from "../words.js";
import { AnswerText } from "./answer_text.js";
import { CopyButton } from "./copy_button.js";

const ENDS = { stop: "complete", length: "cut at the most tokens" };
const LEGEND = [
  ["prediction", "prediction"],
  ["prompt", "prompt"],
  ["ngram", "the request's own text"],
  ["drafter", "drafter"],
  ["target", "the model itself"],
];

export function AnswerPanel({ run, follower }) {
  return html`
    <section class="panel" aria-labelledby="answer-title">
      <div class="panel-head">
        <h2 id="answer-title">It answers</h2>
        ${run && html`<span class="outcome" data-status=${run.status}>${outcome(run)}</span>`}
        ${run && !run.isRunning && html`<${CopyButton} text=${run.follower.text} what="the answer" />`}
      </div>
      ${run
        ? html`
          <${AnswerText} follower=${follower} isRunning=${run.isRunning} label="The answer" />
          <${Legend} follower=${run.follower} />`
        : html`<p class="sheet empty">Run the request, and see where each word comes from.</p>`}
    </section>
  `;
}

function outcome(run) {
  if (run.status === "running") return "streams";
  if (run.status === "failed") return "broke off";
  return run.status === "stopped" ? "stopped" : (ENDS[run.finishReason] ?? run.finishReason);
}

/** Names the looks that the answer has. */
function Legend({ follower }) {
  const seen = new Set(follower.segments.map(({ source }) => sourceClass(source)));
  const always = [follower.points.length > 0 ? "prediction" : "prompt", "target"];
  return html`
    <ul class="legend" aria-label="Where the answer comes from">
      ${LEGEND.filter(([name]) => seen.has(name) || always.includes(name)).map(
        ([name, label]) => html`<li><span class=${`source ${name}`}>${label}</span></li>`,
      )}
    </ul>
  `;
}
