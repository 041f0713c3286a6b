// What went wrong, and what can be done.

import { useState } from "../../vendor/hooks.js";
import { html } from "../html.js";
import { formError } from "../request.js";

const TITLES = {
  unreachable: "The server does not answer",
  refused: "The server refused the request",
  locked: "The server wants a key",
  broken: "The answer broke off",
  invalid: "The request cannot be sent",
};

/** Shows what keeps requests from being answered, or else one of the errors of answers. */
export function FailureNote({ state, actions, errors = [] }) {
  const error = state.server.error ?? formError(state.form) ?? errors.find(isOfAnswer);
  return error && html`
    <${ErrorNote} error=${error}>
      ${error.kind === "locked" && html`<${KeyForm} state=${state} actions=${actions} />`}
      ${error.kind === "unreachable" && html`
        <button type="button" onClick=${() => actions.connect()}>Try again</button>`}
    <//>
  `;
}

export function ErrorNote({ error, children }) {
  return html`
    <div class="failure" role="alert">
      <h2>${TITLES[error.kind]}</h2>
      <p>${error.message}</p>
      ${(error.param || error.code || error.status) && html`
        <p class="detail">
          ${error.status && html`<span>status <code>${error.status}</code></span>`}
          ${error.param && html`<span>field <code>${error.param}</code></span>`}
          ${error.code && html`<span>code <code>${error.code}</code></span>`}
          ${error.retryAfter && html`<span>try again in ${error.retryAfter} s</span>`}
        </p>`}
      ${children}
    </div>
  `;
}

/** What is wrong with the server is said once, until it is mended. */
export function isOfAnswer(error) {
  return error && error.kind !== "locked" && error.kind !== "unreachable";
}

function KeyForm({ state, actions }) {
  const [key, setKey] = useState(state.apiKey);
  const submit = (event) => {
    event.preventDefault();
    actions.setKey(key.trim());
  };
  return html`
    <form class="key" onSubmit=${submit}>
      <label>
        <span>API key</span>
        <input
          type="password"
          autocomplete="off"
          value=${key}
          onInput=${(event) => setKey(event.target.value)}
        />
      </label>
      <button type="submit">Use this key</button>
      <span class="hint">Kept until this tab is closed.</span>
    </form>
  `;
}
