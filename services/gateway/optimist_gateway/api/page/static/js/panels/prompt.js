// What is asked, and what of it the answer repeats.

import { html } from "../html.js";
import { countStates, promptCursor, promptParts } from "../provenance.js";
import { FollowedText } from "./followed_text.js";
import { TextPanel } from "./text_panel.js";

const STATES = { repeated: "the answer repeats it", other: "not repeated" };

export function PromptPanel({ state, actions, follower }) {
  // Of the whole run: the text stays where it is while its passes are gone through again.
  const canFollow = state.run !== null && state.run.follower.promptRanges.length > 0;
  return html`
    <${TextPanel}
      field="prompt"
      title="You ask"
      words=${{ edit: "Edit the prompt", follow: "Show what is repeated" }}
      canFollow=${canFollow}
      state=${state}
      actions=${actions}
    >
      ${canFollow && html`<${FollowedPrompt} follower=${follower} />`}
    <//>
  `;
}

function FollowedPrompt({ follower }) {
  const parts = promptParts(follower);
  const { repeated = 0, other = 0 } = countStates(parts);
  return html`
    <${FollowedText}
      points=${follower.promptPoints}
      parts=${parts}
      cursor=${promptCursor(follower)}
      titles=${STATES}
      label=${`The prompt: ${repeated} characters repeated, ${other} not`}
    />
    <ul class="legend" aria-label="States of the prompt">
      <li><span class="part repeated">repeated by the answer</span></li>
      <li><span class="part other">not repeated</span></li>
    </ul>
  `;
}
