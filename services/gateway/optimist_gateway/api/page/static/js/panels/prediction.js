// What is expected, and the cursor on its way through it.

import { html } from "../html.js";
import { countStates, predictionParts } from "../provenance.js";
import { FollowedText } from "./followed_text.js";
import { TextPanel } from "./text_panel.js";

const STATES = {
  used: "taken from the prediction",
  same: "said by the model itself, as predicted",
  skipped: "skipped",
  ahead: "not reached",
};

export function PredictionPanel({ state, actions, follower }) {
  const canFollow = follower && follower.points.length > 0;
  return html`
    <${TextPanel}
      field="prediction"
      title="You expect"
      placeholder="The answer that you expect, wholly or mostly; or nothing: what the prompt holds is drafted too"
      words=${{ edit: "Edit the text", follow: "Follow the cursor" }}
      canFollow=${canFollow}
      state=${state}
      actions=${actions}
    >
      ${canFollow && html`<${FollowedPrediction} follower=${follower} />`}
    <//>
  `;
}

function FollowedPrediction({ follower }) {
  const parts = predictionParts(follower);
  return html`
    <${FollowedText}
      points=${follower.points}
      parts=${parts}
      cursor=${follower.cursor}
      anchors=${new Map(follower.anchors.map((anchor) => [anchor.at, anchor]))}
      titles=${STATES}
      label=${`The prediction: ${describe(countStates(parts))}`}
    />
    <ul class="legend" aria-label="States of the prediction">
      <li><span class="part used">used</span></li>
      <li><span class="part same">said anyway</span></li>
      <li><span class="part skipped">skipped</span></li>
      <li><span class="part ahead">not reached</span></li>
      <li><span class="anchor" aria-hidden="true">↷</span> found again</li>
    </ul>
  `;
}

function describe({ used, same, skipped, ahead }) {
  return `${used} characters used, ${same} said anyway, ${skipped} skipped, ${ahead} not reached`;
}
