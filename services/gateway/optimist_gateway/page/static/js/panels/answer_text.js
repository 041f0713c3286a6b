// An answer, each part looking like where it came from.

import { useEffect, useRef } from "../../vendor/hooks.js";
import { html } from "../html.js";
import { joinSegments } from "../provenance.js";
import { plural, sourceClass, sourceName } from "../words.js";

export function AnswerText({ follower, label, isRunning }) {
  const sheet = useRef(null);
  useEffect(() => {
    sheet.current.scrollTop = sheet.current.scrollHeight;
  }, [follower.length]);
  return html`
    <div class="sheet answer-text" ref=${sheet} tabindex="0" role="region" aria-label=${label}>
      ${joinSegments(follower.segments).map((segment) => html`
        <span class=${`source ${sourceClass(segment.source)}`} title=${tooltip(segment)}>${segment.text}</span>`)}
      ${isRunning && html`<span class="cursor"></span>`}
    </div>
  `;
}

function tooltip(segment) {
  const tokens = `pass ${segment.pass}, ${plural(segment.numTokens, "token")} ${sourceName(segment.source)}`;
  if (segment.start === undefined) return tokens;
  const place = `characters ${segment.start} to ${segment.end} of the prediction`;
  return segment.source === "prediction" ? `${tokens}: ${place}` : `${tokens}, as predicted: ${place}`;
}
