// Examples, what to do, and how.

import { html } from "../html.js";
import { editsFor } from "../examples.js";
import { isBusy } from "../state.js";
import { Options } from "./options.js";

export function Toolbar({ state, actions }) {
  const edits = editsFor(state.server.model);
  const isOffered = edits.some(({ id }) => id === state.exampleId);
  return html`
    <div class="toolbar" role="group" aria-label="Request">
      <label class="example">
        <span>Example</span>
        <select value=${state.exampleId} onChange=${(event) => actions.choose(event.target.value)}>
          ${!isOffered && html`<option value=${state.exampleId}>Your own</option>`}
          ${edits.map(({ id, title }) => html`<option value=${id}>${title}</option>`)}
        </select>
      </label>
      <div class="buttons">
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
        <button type="button" disabled=${!isBusy(state)} onClick=${() => actions.stop()} title="Esc">
          Stop
        </button>
      </div>
      <${Options} form=${state.form} actions=${actions} />
    </div>
  `;
}
