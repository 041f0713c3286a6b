// The account of an answer, as it grows.

import { html } from "../html.js";
import { runFigures } from "../run.js";
import { decimal, percent, seconds } from "../words.js";

export function Counters({ run }) {
  const figures = runFigures(run);
  return html`
    <dl class="counters">
      <${Counter} name="Tokens" value=${figures.numTokens} />
      <${Counter} name="Passes" value=${figures.numPasses} />
      <${Counter} name="Tokens a pass" value=${decimal(figures.tokensPerPass)} isMain />
      <${Counter} name="Accepted drafts" value=${percent(figures.acceptedShare)} />
      <${Counter} name="Time" value=${seconds(figures.seconds)} />
      <${Counter} name="Tokens a second" value=${decimal(figures.tokensPerSecond, 0)} />
      <${Counter} name="First token" value=${seconds(figures.secondsToFirstToken)} />
    </dl>
  `;
}

function Counter({ name, value, isMain = false }) {
  return html`<div class=${isMain ? "main" : ""}><dt>${name}</dt><dd>${value}</dd></div>`;
}
