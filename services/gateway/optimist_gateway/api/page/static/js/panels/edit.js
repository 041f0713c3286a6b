// An edit: a prompt, its prediction and the answer.

import { html } from "../html.js";
import { followPasses } from "../provenance.js";
import { AnswerPanel } from "./answer.js";
import { Counters } from "./counters.js";
import { FailureNote } from "./failure.js";
import { PassChart } from "./pass_chart.js";
import { PredictionPanel } from "./prediction.js";
import { PromptPanel } from "./prompt.js";
import { RacePanel } from "./race.js";
import { Replay } from "./replay.js";
import { SnippetPanel } from "./snippet.js";
import { Toolbar } from "./toolbar.js";
import { PredictionWeave, PromptWeave } from "./weave.js";

export function EditView({ state, actions }) {
  const { run, race, shownPass } = state;
  const follower =
    run && shownPass !== null ? followPasses(run, shownPass) : run?.follower;
  const isPredicted = run?.follower.points.length > 0;
  const isPrompted = run?.follower.promptRanges.length > 0 || !isPredicted;
  const texts = [isPrompted && "prompt", isPredicted && "prediction"].filter(Boolean);
  return html`
    <${FailureNote} state=${state} actions=${actions} errors=${[run?.error, race?.without.error]} />
    <${Toolbar} state=${state} actions=${actions} />
    <div class="triptych">
      <${PromptPanel} state=${state} actions=${actions} follower=${follower} />
      <${PredictionPanel} state=${state} actions=${actions} follower=${follower} />
      <${AnswerPanel} run=${run} follower=${follower} />
    </div>
    ${run && html`
      <section class="journey" aria-labelledby="journey-title">
        <h2 id="journey-title">The way through the ${texts.join(" and the ")}</h2>
        ${isPrompted && html`<${PromptWeave} follower=${follower} />`}
        ${isPredicted && html`<${PredictionWeave} follower=${follower} />`}
        <${Replay} run=${run} shownPass=${shownPass} actions=${actions} />
        <${Counters} run=${run} />
      </section>`}
    ${race && html`<${RacePanel} race=${race} />`}
    ${run && run.follower.passes.length > 0 && html`
      <${PassChart} run=${run} shownPass=${shownPass} theme=${state.theme} />`}
    <${SnippetPanel} state=${state} actions=${actions} />
  `;
}
