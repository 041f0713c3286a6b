// What is asked.

import { html } from "../html.js";

export function PromptPanel({ state, actions }) {
  return html`
    <section class="panel" aria-labelledby="prompt-title">
      <div class="panel-head">
        <h2 id="prompt-title"><label for="prompt">You ask</label></h2>
      </div>
      <textarea
        id="prompt"
        class="sheet"
        spellcheck=${false}
        autocapitalize="off"
        value=${state.form.prompt}
        onInput=${(event) => actions.edit({ prompt: event.target.value })}
      ></textarea>
    </section>
  `;
}
