// Examples, what to do, and how.

import { html } from "../html.js";
import { EXAMPLE_GROUPS } from "../examples.js";
import { MAX_SEED } from "../request.js";

const OPTIONS = [
  { field: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, placeholder: "1" },
  { field: "seed", label: "Seed", min: -MAX_SEED, max: MAX_SEED, step: 1, placeholder: "any" },
  { field: "maxTokens", label: "Most tokens", min: 1, step: 1, placeholder: "all that fit" },
  { field: "maxDrafts", label: "Most drafts a pass", min: 0, step: 1, placeholder: "as it pays" },
];

export function Toolbar({ state, actions }) {
  const isRunning = state.isWaiting || state.run?.isRunning || state.race?.without.isRunning;
  return html`
    <div class="toolbar" role="group" aria-label="Request">
      <label class="example">
        <span>Example</span>
        <select value=${state.exampleId} onChange=${(event) => actions.choose(event.target.value)}>
          ${EXAMPLE_GROUPS.map(
            ({ label, examples }) => html`
              <optgroup label=${label}>
                ${examples.map(({ id, title }) => html`<option value=${id}>${title}</option>`)}
              </optgroup>
            `,
          )}
        </select>
      </label>
      <button type="button" class="primary" onClick=${() => actions.run()}>
        Run <kbd>Ctrl</kbd> <kbd>Enter</kbd>
      </button>
      <button
        type="button"
        disabled=${!state.form.prediction}
        onClick=${() => actions.race()}
        title=${state.form.prediction ? "Ctrl+Shift+Enter" : "There is no prediction to race with"}
      >
        Race with and without
      </button>
      <button type="button" disabled=${!isRunning} onClick=${() => actions.stop()} title="Esc">
        Stop
      </button>
      <details class="options">
        <summary>Options</summary>
        <div>${OPTIONS.map((option) => html`<${Option} option=${option} state=${state} actions=${actions} />`)}</div>
      </details>
    </div>
  `;
}

function Option({ option: { field, label, ...attributes }, state, actions }) {
  return html`
    <label>
      <span>${label}</span>
      <input
        type="number"
        inputmode="decimal"
        ...${attributes}
        value=${state.form[field]}
        onInput=${(event) => actions.edit({ [field]: event.target.value })}
      />
    </label>
  `;
}
