// The request for other programs.

import { html } from "../html.js";
import { BASE_URL } from "../actions.js";
import { requestBody } from "../request.js";
import { curlSnippet, pythonSnippet } from "../snippets.js";
import { CopyButton } from "./copy_button.js";

const KINDS = [
  { id: "curl", title: "curl", write: curlSnippet },
  { id: "python", title: "Python", write: pythonSnippet },
];

export function SnippetPanel({ state, actions }) {
  const body = requestBody(state.form, state.server.model || "MODEL");
  const kind = KINDS.find(({ id }) => id === state.snippet);
  const text = kind.write(body, BASE_URL, state.apiKey !== "");
  return html`
    <section class="snippet" aria-labelledby="snippet-title">
      <div class="panel-head">
        <h2 id="snippet-title">The same request elsewhere</h2>
        <div class="choices" role="group" aria-label="Language">
          ${KINDS.map(({ id, title }) => html`
            <button
              type="button"
              class="quiet"
              aria-pressed=${id === state.snippet}
              onClick=${() => actions.store.set({ snippet: id })}
            >${title}</button>`)}
        </div>
        <${CopyButton} text=${text} what="the request" />
      </div>
      <pre class="sheet" tabindex="0" role="region" aria-label=${`The request in ${kind.title}`}>${text}</pre>
    </section>
  `;
}
