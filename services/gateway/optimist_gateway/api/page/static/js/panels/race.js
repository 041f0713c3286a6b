// The same request with and without the prediction, side by side.

import { html } from "../html.js";
import { decimal, plural, raceOutcome, raceSummary, seconds } from "../words.js";
import { AnswerText } from "./answer_text.js";

export function RacePanel({ race }) {
  const outcome = raceOutcome(race);
  const goal = Math.max(race.with.follower.points.length, race.with.follower.length, race.without.follower.length, 1);
  return html`
    <section class="race" aria-labelledby="race-title">
      <h2 id="race-title">Race</h2>
      <p class="verdict" data-identical=${outcome?.isIdentical}>
        ${outcome ? raceSummary(race) : "Both run at the same time and share the machine."}
      </p>
      <div class="lanes">
        <${Lane} run=${race.without} goal=${goal} title="Without prediction" />
        <${Lane} run=${race.with} goal=${goal} title="With prediction" />
      </div>
    </section>
  `;
}

function Lane({ run, goal, title }) {
  const { follower } = run;
  const share = run.status === "done" ? 1 : Math.min(follower.length / goal, 1);
  const numPasses = follower.passes.length;
  return html`
    <div class="lane" data-status=${run.status}>
      <h3>${title}</h3>
      <svg class="track" viewBox="0 0 1000 8" preserveAspectRatio="none" aria-hidden="true">
        <rect class="rail" width="1000" height="8" />
        <rect class="done" width=${share * 1000} height="8" />
      </svg>
      <p class="figures">
        <strong>${seconds(run.seconds)}</strong>
        <span>${plural(follower.numTokens, "token")}</span>
        <span>${plural(numPasses, "pass", "passes")}</span>
        <span>${decimal(numPasses ? follower.numTokens / numPasses : null)} a pass</span>
      </p>
      <${AnswerText} follower=${follower} isRunning=${run.isRunning} label=${`The answer ${title.toLowerCase()}`} />
    </div>
  `;
}
