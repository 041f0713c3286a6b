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

function promptPlace({ start, end, token_start: tokenStart, token_end: tokenEnd }) {
  return start === undefined
    ? `its tokens ${tokenStart} to ${tokenEnd}, which the chat template adds`
    : `characters ${start} to ${end} of the prompt`;
}

function tooltip(segment) {
  const drafts = `pass ${segment.pass}, ${plural(segment.numTokens, "token")} ${sourceName(segment.source)}`;
  const tokens = segment.prompt ? `${drafts}: ${promptPlace(segment.prompt)}` : drafts;
  if (segment.start === undefined) return tokens;
  const place = `characters ${segment.start} to ${segment.end} of the prediction`;
  return segment.source === "prediction" ? `${tokens}: ${place}` : `${tokens}, as predicted: ${place}`;
}
