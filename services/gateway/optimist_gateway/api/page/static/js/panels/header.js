// Name, views, model, the server's state, theme.

import { html } from "../html.js";

const STATES = {
  unknown: "looking for the server",
  ready: "ready",
  locked: "wants a key",
  unreachable: "does not answer",
};
const MODES = { edit: "Edit", chat: "Chat" };
const THEMES = ["system", "light", "dark"];

export function Header({ state, actions }) {
  const { status, models, model } = state.server;
  return html`
    <header>
      <p class="wordmark"><img src="page/icon.svg" alt="" width="24" height="24" />Optimist</p>
      <nav aria-label="Views">
        ${Object.entries(MODES).map(([mode, title]) => html`
          <a href=${`#${mode}`} aria-current=${mode === state.mode ? "page" : undefined}>${title}</a>`)}
      </nav>
      <p class="server" data-status=${status}>
        <span class="lamp" aria-hidden="true"></span>
        ${
          models.length > 1
            ? html`<select aria-label="Model" value=${model} onChange=${(event) => actions.setModel(event.target.value)}>
                ${models.map((name) => html`<option value=${name}>${name}</option>`)}
              </select>`
            : model && html`<code>${model}</code>`
        }
        ${STATES[status]}
      </p>
      <label class="theme">
        <span>Theme</span>
        <select aria-label="Theme" value=${state.theme} onChange=${(event) => actions.setTheme(event.target.value)}>
          ${THEMES.map((theme) => html`<option value=${theme}>${theme}</option>`)}
        </select>
      </label>
    </header>
  `;
}
