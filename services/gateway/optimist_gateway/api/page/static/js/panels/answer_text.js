// An answer, each part looking like where it came from.

import { useEffect, useMemo, useRef } from "../../vendor/hooks.js";
import { html } from "../html.js";
import { joinSegments } from "../provenance.js";
import { plural, sourceClass, sourceName } from "../words.js";

export function AnswerText({ follower, label, isRunning }) {
  const sheet = useRef(null);
  useEffect(() => {
    sheet.current.scrollTop = sheet.current.scrollHeight;
  }, [follower.length]);
  // Long chats have many answers that have ended.
  return useMemo(() => html`
    <div class="sheet answer-text" ref=${sheet} tabindex="0" role="region" aria-label=${label}>
      ${joinSegments(follower.segments).map((segment) => html`
        <span class=${`source ${sourceClass(segment.source)}`} title=${tooltip(segment, follower)}>${segment.text}</span>`)}
      ${isRunning && html`<span class="cursor"></span>`}
    </div>
  `, [follower, follower.length, label, isRunning]);
}

function promptPlace({ message, start, end, token_start: tokenStart, token_end: tokenEnd }, follower) {
  if (start === undefined) return `its tokens ${tokenStart} to ${tokenEnd}, which the chat template adds`;
  const text = message === follower.message ? "the prompt" : `message ${message + 1}`;
  return `characters ${start} to ${end} of ${text}`;
}

function tooltip(segment, follower) {
  const drafts = `pass ${segment.pass}, ${plural(segment.numTokens, "token")} ${sourceName(segment.source)}`;
  const tokens = segment.prompt ? `${drafts}: ${promptPlace(segment.prompt, follower)}` : drafts;
  if (segment.start === undefined) return tokens;
  const place = `characters ${segment.start} to ${segment.end} of the prediction`;
  return segment.source === "prediction" ? `${tokens}: ${place}` : `${tokens}, as predicted: ${place}`;
}
