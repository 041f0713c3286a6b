// Follows an answer through its prediction: which characters were used, which skipped, and where the
// place was found again; and through its prompt: which characters it repeats. Places are counted in code
// points, as the server counts them.

export const TARGET = "target";
export const PREDICTION = "prediction";
/** Of drafts that were read from the prompt, which the server counts as the request's own text. */
export const PROMPT = "prompt";
const OWN_TEXT = "ngram";

/** Returns the code points of a text as the server reads predictions: with LF for CR LF and CR. */
export function codePoints(text) {
  return Array.from(text.replace(/\r\n?/g, "\n"));
}

/** Follows one answer, chunk by chunk; a chunk with tokens is one forward pass. */
export class Follower {
  /** `message` is the place of the prompt among the messages. */
  constructor({ prediction = "", prompt = "", message = 0 }) {
    this.points = codePoints(prediction);
    this.promptPoints = Array.from(prompt);
    this.message = message;
    /** Character of the prediction that is expected next. */
    this.cursor = 0;
    /** The answer has left the prediction. */
    this.isLost = false;
    /**
     * Parts of the answer: {source, text, numTokens, pass, from, to, start, end, prompt}; the last is the
     * place in the prompt, as the server words it.
     */
    this.segments = [];
    /** Parts of the prediction that are in the answer: {start, end, state, from, to, pass}. */
    this.ranges = [];
    /** Parts of the prompt that the answer repeats: {start, end, state, from, to, pass}. */
    this.promptRanges = [];
    /** Where the place was found again: {at, left, pass}. */
    this.anchors = [];
    /** One for each forward pass: {numTokens, numAccepted, source, from, to, text}. */
    this.passes = [];
    this.numTokens = 0;
    this.numAccepted = 0;
    this.length = 0;
    // Texts said since the prediction was left, as they came.
    this.strayed = [];
  }

  push(choice) {
    const segments = choice.provenance ?? [];
    const numTokens = segments.reduce((sum, segment) => sum + segment.num_tokens, 0);
    const drafted = segments.filter((segment) => segment.source !== TARGET);
    const numAccepted = drafted.reduce((sum, segment) => sum + segment.num_tokens, 0);
    const from = this.length;
    const pass = this.passes.length + (numTokens > 0 ? 1 : 0);
    for (const segment of segments) this.#add(segment, pass);
    const text = segments.map((segment) => segment.text).join("");
    if (numTokens === 0) {
      this.#append(text);
      return;
    }
    const source = drafted.length > 0 ? sourceOf(drafted[0]) : TARGET;
    this.passes.push({ numTokens, numAccepted, source, from, to: this.length, text });
    this.numTokens += numTokens;
    this.numAccepted += numAccepted;
  }

  get text() {
    return this.segments.map((segment) => segment.text).join("");
  }

  /** Text that comes without tokens was held back by the last pass. */
  #append(text) {
    const last = this.passes.at(-1);
    if (!last) return;
    last.text += text;
    last.to = this.length;
  }

  #add(segment, pass) {
    const points = Array.from(segment.text);
    const place = placeOf(segment);
    const from = this.length;
    const to = from + points.length;
    const added = { source: sourceOf(segment), text: segment.text, numTokens: segment.num_tokens, pass, from, to };
    this.length = to;
    if (segment.prompt) this.#repeat(added, segment.prompt);
    else if (segment.source === OWN_TEXT && segment.num_tokens === 0) this.#goOnRepeating(added);
    if (segment.source === PREDICTION && segment.num_tokens === 0) {
      this.#complete(added);
      return;
    }
    if (place) {
      this.segments.push({ ...added, ...place });
      this.#use(place, from, pass);
      return;
    }
    const start = this.cursor;
    if (points.length > 0 && this.#agree(points, from, pass)) {
      this.segments.push({ ...added, start, end: this.cursor });
    } else if (points.length > 0 || segment.num_tokens > 0) {
      this.segments.push(added);
    }
  }

  /** Takes what the prediction gave: the cursor stands behind it. */
  #use({ start, end }, from, pass) {
    if (this.isLost || start !== this.cursor) {
      this.#rejoin(start, from, pass);
      this.anchors.push({ at: start, left: this.cursor, pass });
    }
    this.ranges.push({ start, end, state: "used", from, to: this.length, pass });
    this.cursor = end;
    this.isLost = false;
    this.strayed = [];
  }

  /** Takes what was read from the prompt. */
  #repeat(added, part) {
    added.prompt = part;
    const { from, to, pass } = added;
    const { message, start, end } = part;
    if (message === this.message) this.promptRanges.push({ start, end, state: "repeated", from, to, pass });
  }

  /** Text that was held back comes later than its tokens, without its place. */
  #goOnRepeating(added) {
    const last = this.segments.findLast(({ source }) => source === PROMPT || source === OWN_TEXT);
    if (!last?.prompt) return;
    added.source = PROMPT;
    added.prompt = last.prompt;
    const range = this.promptRanges.at(-1);
    if (range && range.to === added.from) range.to = added.to;
  }

  /** Text that was held back comes later than its tokens. */
  #complete(added) {
    const { start, end } = this.segments.findLast((segment) => segment.source === PREDICTION) ?? {};
    this.segments.push({ ...added, start, end });
    const range = this.ranges.findLast(({ state }) => state === "used");
    if (range && range.to === added.from) range.to = added.to;
  }

  /** What was said last while the place was lost may be what the prediction has there. */
  #rejoin(start, from, pass) {
    let begin = start;
    for (const points of this.strayed.reverse()) {
      const before = begin - points.length;
      if (before < this.cursor || !stands(this.points, points, before)) break;
      begin = before;
    }
    if (begin === start) return;
    const length = start - begin;
    this.ranges.push({ start: begin, end: start, state: "same", from: from - length, to: from, pass });
  }

  /** Follows what came from elsewhere; true if the prediction has the same at the cursor. */
  #agree(points, from, pass) {
    const end = this.cursor + points.length;
    const isSame = !this.isLost && stands(this.points, points, this.cursor);
    if (isSame) {
      this.ranges.push({ start: this.cursor, end, state: "same", from, to: from + points.length, pass });
      this.cursor = end;
    } else {
      this.isLost = true;
      this.strayed.push(points);
    }
    return isSame;
  }
}

/** Returns a follower that has seen the first `count` passes, and what belongs to them. */
export function followPasses({ texts, choices }, count) {
  const follower = new Follower(texts);
  for (const choice of choices) {
    const isPass = choice.provenance?.some((segment) => segment.num_tokens > 0);
    if (isPass && follower.passes.length === count) break;
    follower.push(choice);
  }
  return follower;
}

/**
 * Returns the whole prediction as parts {start, end, state}: "used" (taken from it), "same" (the model
 * said it by itself), "skipped" (left behind) and "ahead" (not reached), cut at anchors and cursor.
 */
export function predictionParts(follower) {
  const { points, ranges, anchors, cursor } = follower;
  const states = new Array(points.length).fill("ahead");
  const reach = Math.max(0, ...ranges.map((range) => range.end));
  states.fill("skipped", 0, reach);
  for (const state of ["same", "used"]) {
    for (const range of ranges) if (range.state === state) states.fill(state, range.start, range.end);
  }
  return partsOf(states, [cursor, ...anchors.map((anchor) => anchor.at)]);
}

/** Returns where the answer read the prompt last; -1 if it did not. */
export function promptCursor(follower) {
  return follower.promptRanges.at(-1)?.end ?? -1;
}

/** Returns the whole prompt as parts {start, end, state}: "repeated" or "other", cut at the cursor. */
export function promptParts(follower) {
  const states = new Array(follower.promptPoints.length).fill("other");
  for (const { state, start, end } of follower.promptRanges) states.fill(state, start, end);
  return partsOf(states, [promptCursor(follower)]);
}

/** Joins characters of the same state; a part begins at each cut. */
function partsOf(states, places) {
  const cuts = new Set(places);
  const parts = [];
  states.forEach((state, index) => {
    const last = parts.at(-1);
    if (last && last.state === state && !cuts.has(index)) last.end = index + 1;
    else parts.push({ start: index, end: index + 1, state });
  });
  return parts;
}

/** Returns how many characters are in each state. */
export function countStates(parts) {
  const counts = { used: 0, same: 0, skipped: 0, ahead: 0 };
  for (const { state, start, end } of parts) counts[state] = (counts[state] ?? 0) + end - start;
  return counts;
}

/** Returns the answer's segments, neighbours of the same source and run joined, empty ones left out. */
export function joinSegments(segments) {
  const joined = [];
  for (const segment of segments) {
    const last = joined.at(-1);
    if (!segment.text) {
      if (last) last.numTokens += segment.numTokens;
    } else if (last && goesOn(last, segment)) {
      joined[joined.length - 1] = {
        ...last,
        text: last.text + segment.text,
        numTokens: last.numTokens + segment.numTokens,
        to: segment.to,
        end: segment.end,
      };
    } else {
      joined.push({ ...segment });
    }
  }
  return joined;
}

function goesOn(segment, next) {
  return (
    segment.source === next.source &&
    segment.end === next.start &&
    segment.pass === next.pass &&
    segment.prompt === next.prompt
  );
}

function sourceOf(segment) {
  return segment.prompt ? PROMPT : segment.source;
}

/** Returns where a segment stands in the prediction, if that is known. */
function placeOf({ source, prediction: part }) {
  if (source !== PREDICTION || part?.index !== 0 || part.end === part.start) return null;
  return { start: part.start, end: part.end };
}

function stands(points, wanted, start) {
  return wanted.every((point, index) => points[start + index] === point);
}
