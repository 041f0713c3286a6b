// Prediction or prompt above, answer below, and a band for each part of the one that is in the other.

import { html } from "../html.js";
import { countStates, joinSegments, predictionParts, promptCursor, promptParts } from "../provenance.js";
import { sourceClass } from "../words.js";

const WIDTH = 1000;
const HEIGHT = 104;
const BAR = 12;
const BOTTOM = HEIGHT - BAR;

export function PredictionWeave({ follower }) {
  const { points, ranges, cursor } = follower;
  const parts = predictionParts(follower);
  const label = describePrediction(follower, countStates(parts));
  return html`<${Weave} ...${{ name: "prediction", label, points, parts, ranges, cursor, follower }} />`;
}

export function PromptWeave({ follower }) {
  const { promptPoints: points, promptRanges: ranges } = follower;
  const parts = promptParts(follower);
  const { repeated = 0 } = countStates(parts);
  const label = `Of ${points.length} characters of the prompt the answer repeats ${repeated}.`;
  const cursor = promptCursor(follower);
  return html`<${Weave} ...${{ name: "prompt", label, points, parts, ranges, cursor, follower }} />`;
}

function Weave({ name, label, points, parts, ranges, cursor, follower }) {
  const longest = Math.max(points.length, follower.length, 1);
  const x = (position) => (position * WIDTH) / longest;
  return html`
    <div class="weave" role="img" aria-label=${label}>
      <p>${name}</p>
      <div class="runway">
        ${cursor >= 0 && html`<span class="runner" style=${{ left: `${(100 * cursor) / longest}%` }}></span>`}
      </div>
      <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none">
        ${joinRanges(ranges).map((range) => html`
          <path class=${`band ${range.state}`} d=${band(range, x)} />`)}
        ${parts.map((part) => html`
          <${Block} at=${0} from=${x(part.start)} to=${x(part.end)} class=${`part ${part.state}`} />`)}
        ${joinSegments(follower.segments).map((segment) => html`
          <${Block} at=${BOTTOM} from=${x(segment.from)} to=${x(segment.to)}
            class=${`source ${sourceClass(segment.source)}`} />`)}
      </svg>
      <p>answer</p>
    </div>
  `;
}

function Block({ at, from, to, class: name }) {
  return html`<rect class=${name} x=${from} y=${at} width=${Math.max(to - from, 0.5)} height=${BAR} />`;
}

function band({ start, end, from, to }, x) {
  const upper = BAR;
  const middle = (upper + BOTTOM) / 2;
  const curve = (x1, x2, y) => `C${x1} ${middle} ${x2} ${middle} ${x2} ${y}`;
  return (
    `M${x(start)} ${upper} ${curve(x(start), x(from), BOTTOM)} L${x(to)} ${BOTTOM} ` +
    `${curve(x(to), x(end), upper)} Z`
  );
}

/** Joins neighbours, so that a long run is one band. */
function joinRanges(ranges) {
  const joined = [];
  for (const range of [...ranges].sort((one, other) => one.from - other.from)) {
    const last = joined.at(-1);
    if (last && last.state === range.state && last.end === range.start && last.to === range.from) {
      last.end = range.end;
      last.to = range.to;
    } else {
      joined.push({ ...range });
    }
  }
  return joined;
}

function describePrediction(follower, { used, same, skipped, ahead }) {
  return (
    `Of ${follower.points.length} characters of the prediction ${used} were used, ${same} said by the model ` +
    `itself, ${skipped} skipped and ${ahead} not reached; the place was found again ` +
    `${follower.anchors.length} times.`
  );
}
