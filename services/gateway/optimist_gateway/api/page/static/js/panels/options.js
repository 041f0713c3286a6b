// How the model is asked, in edits and in the chat.

import { html } from "../html.js";
import { MAX_SEED } from "../request.js";

const OPTIONS = [
  { field: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, placeholder: "1" },
  { field: "seed", label: "Seed", min: -MAX_SEED, max: MAX_SEED, step: 1, placeholder: "any" },
  { field: "maxTokens", label: "Most tokens", min: 1, step: 1, placeholder: "all that fit" },
  { field: "maxDrafts", label: "Most drafts a pass", min: 0, step: 1, placeholder: "as it pays" },
  { field: "system", label: "System prompt", type: "text", placeholder: "the chat template's" },
];

export function Options({ form, actions }) {
  return html`
    <details class="options">
      <summary>Options</summary>
      <div>
        ${OPTIONS.map(({ field, label, ...attributes }) => html`
          <label>
            <span>${label}</span>
            <input
              type="number"
              ...${attributes}
              value=${form[field]}
              onInput=${(event) => actions.edit({ [field]: event.target.value })}
            />
          </label>`)}
      </div>
    </details>
  `;
}
