// What is expected: text to edit, or the cursor on its way through it.

import { useEffect, useLayoutEffect, useRef } from "../../vendor/hooks.js";
import { html } from "../html.js";
import { countStates, predictionParts } from "../provenance.js";

const STATES = {
  used: "taken from the prediction",
  same: "said by the model itself, as predicted",
  skipped: "skipped",
  ahead: "not reached",
};

export function PredictionPanel({ state, actions, follower }) {
  const isFollowing = state.view === "follow" && follower && follower.points.length > 0;
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
    <section class="panel" aria-labelledby="prediction-title" ref=${panel}>
      <div class="panel-head">
        <h2 id="prediction-title">
          ${isFollowing ? "You expect" : html`<label for="prediction">You expect</label>`}
        </h2>
        ${follower && follower.points.length > 0 && html`
          <button type="button" class="quiet" onClick=${toggle}>
            ${isFollowing ? "Edit the text" : "Follow the cursor"}
          </button>`}
      </div>
      ${isFollowing
        ? html`<${FollowedPrediction} follower=${follower} />`
        : html`
          <textarea
            id="prediction"
            class="sheet"
            spellcheck=${false}
            autocapitalize="off"
            placeholder="The answer that you expect, wholly or mostly"
            value=${state.form.prediction}
            onInput=${(event) => actions.edit({ prediction: event.target.value })}
          ></textarea>`}
    </section>
  `;
}

/** Returns what the panel shows the prediction in. */
function sheetOf(panel) {
  return panel?.querySelector(".sheet");
}

function FollowedPrediction({ follower }) {
  const sheet = useRef(null);
  const cursor = useRef(null);
  const parts = predictionParts(follower);
  const anchors = new Map(follower.anchors.map((anchor) => [anchor.at, anchor]));
  const counts = countStates(parts);
  useEffect(() => keepInView(sheet.current, cursor.current), [follower.cursor]);
  return html`
    <div
      class="sheet followed"
      ref=${sheet}
      tabindex="0"
      role="region"
      aria-label=${`The prediction: ${describe(counts)}`}
    >
      ${parts.map((part) => html`
        <${Mark} anchor=${anchors.get(part.start)} />
        ${part.start === follower.cursor && html`<span class="cursor" ref=${cursor}></span>`}
        <span class=${`part ${part.state}`} title=${STATES[part.state]}>
          ${follower.points.slice(part.start, part.end).join("")}
        </span>`)}
      ${follower.cursor === follower.points.length && html`<span class="cursor" ref=${cursor}></span>`}
    </div>
    <ul class="legend" aria-label="States of the prediction">
      <li><span class="part used">used</span></li>
      <li><span class="part same">said anyway</span></li>
      <li><span class="part skipped">skipped</span></li>
      <li><span class="part ahead">not reached</span></li>
      <li><span class="anchor" aria-hidden="true">↷</span> found again</li>
    </ul>
  `;
}

function Mark({ anchor }) {
  if (!anchor) return null;
  const distance = anchor.at - anchor.left;
  const way = distance < 0 ? `${-distance} characters back` : `${distance} characters on`;
  return html`<span class="anchor" title=${`pass ${anchor.pass}: place found again, ${way}`}>↷</span>`;
}

function describe({ used, same, skipped, ahead }) {
  return `${used} characters used, ${same} said anyway, ${skipped} skipped, ${ahead} not reached`;
}

/** Scrolls the sheet, never the page. */
function keepInView(sheet, cursor) {
  if (!sheet || !cursor) return;
  const { offsetTop } = cursor;
  const margin = sheet.clientHeight / 4;
  if (offsetTop < sheet.scrollTop + margin || offsetTop > sheet.scrollTop + sheet.clientHeight - margin) {
    sheet.scrollTop = offsetTop - sheet.clientHeight / 2;
  }
}
