// The whole page.

import { html } from "../html.js";
import { ChatView } from "./chat.js";
import { EditView } from "./edit.js";
import { Header } from "./header.js";

export function App({ state, actions }) {
  const View = state.mode === "chat" ? ChatView : EditView;
  return html`
    <a class="skip-link" href="#work">Skip to the request</a>
    <${Header} state=${state} actions=${actions} />
    <main id="work" class=${state.mode} tabindex="-1">
      <h1 class="visually-hidden">Optimist: a prediction at work</h1>
      <${View} state=${state} actions=${actions} />
    </main>
    <footer>
      ${!state.apiKey && html`
        <a href="openapi.json">API schema</a>
        <a href="metrics">Metrics</a>`}
      <span>Nothing on this page comes from elsewhere.</span>
    </footer>
    <p class="visually-hidden" aria-live="polite">${state.announcement}</p>
  `;
}
