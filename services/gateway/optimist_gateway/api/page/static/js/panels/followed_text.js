// A text and the cursor on its way through it.

import { useEffect, useRef } from "../../vendor/hooks.js";
import { html } from "../html.js";

const NONE = new Map();

/** Shows each part {start, end, state} of a text; `titles` says what a state means. */
export function FollowedText({ points, parts, cursor, anchors = NONE, titles, label }) {
  const sheet = useRef(null);
  const mark = useRef(null);
  useEffect(() => keepInView(sheet.current, mark.current), [cursor]);
  return html`
    <div class="sheet followed" ref=${sheet} tabindex="0" role="region" aria-label=${label}>
      ${parts.map((part) => html`
        <${Anchor} anchor=${anchors.get(part.start)} />
        ${part.start === cursor && html`<span class="cursor" ref=${mark}></span>`}
        <span class=${`part ${part.state}`} title=${titles[part.state]}>
          ${points.slice(part.start, part.end).join("")}
        </span>`)}
      ${cursor === points.length && html`<span class="cursor" ref=${mark}></span>`}
    </div>
  `;
}

function Anchor({ anchor }) {
  if (!anchor) return null;
  const distance = anchor.at - anchor.left;
  const way = distance < 0 ? `${-distance} characters back` : `${distance} characters on`;
  return html`<span class="anchor" title=${`pass ${anchor.pass}: place found again, ${way}`}>↷</span>`;
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
