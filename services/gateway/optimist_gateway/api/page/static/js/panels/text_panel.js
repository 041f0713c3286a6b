// A text of the request: to edit, or to follow the answer through it.

import { useLayoutEffect, useRef } from "../../vendor/hooks.js";
import { html } from "../html.js";

/** Shows a field of the form, or its children once there is something to follow. */
export function TextPanel({ field, title, placeholder, words, canFollow, state, actions, children }) {
  const isFollowing = state.view === "follow" && canFollow;
  const panel = useRef(null);
  const wantsText = useRef(false);
  // Read before the sheet is replaced: focus goes with it.
  const hadFocus = sheetOf(panel.current) === document.activeElement;
  useLayoutEffect(() => {
    if (hadFocus || wantsText.current) sheetOf(panel.current).focus({ preventScroll: true });
    wantsText.current = false;
  }, [isFollowing]);
  const toggle = () => {
    wantsText.current = isFollowing;
    actions.store.set({ view: isFollowing ? "edit" : "follow" });
  };
  return html`
    <section class="panel" aria-labelledby=${`${field}-title`} ref=${panel}>
      <div class="panel-head">
        <h2 id=${`${field}-title`}>${isFollowing ? title : html`<label for=${field}>${title}</label>`}</h2>
        ${canFollow && html`
          <button type="button" class="quiet" onClick=${toggle}>${isFollowing ? words.edit : words.follow}</button>`}
      </div>
      ${isFollowing
        ? children
        : html`
          <textarea
            id=${field}
            class="sheet"
            spellcheck=${false}
            autocapitalize="off"
            placeholder=${placeholder}
            value=${state.form[field]}
            onInput=${(event) => actions.edit({ [field]: event.target.value })}
          ></textarea>`}
    </section>
  `;
}

/** Returns what the panel shows the text in. */
function sheetOf(panel) {
  return panel?.querySelector(".sheet");
}
