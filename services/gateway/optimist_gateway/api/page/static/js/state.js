// What the page knows, and who wants to hear of changes.

import { editsFor, exampleForm } from "./examples.js";
import { keepStored, readStored } from "./storage.js";

const KEY = "optimist-api-key";
const THEME = "optimist-theme";

/** Holds the state; listeners hear of changes once a frame. */
export class Store {
  #listeners = new Set();
  #isScheduled = false;

  constructor(state) {
    this.state = state;
  }

  /** Changes some fields. */
  set(changes) {
    this.state = { ...this.state, ...changes };
    this.changed();
  }

  /** Says that something in the state has changed. */
  changed = () => {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    requestAnimationFrame(() => {
      this.#isScheduled = false;
      for (const listener of this.#listeners) listener(this.state);
    });
  };

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

export function initialState() {
  const [example] = editsFor("");
  return {
    server: { status: "unknown", models: [], model: "", error: null },
    apiKey: readStored("sessionStorage", KEY) ?? "",
    theme: readStored("localStorage", THEME) ?? "system",
    /** What is shown: an "edit" or the "chat". */
    mode: modeOf(location.hash) ?? "edit",
    exampleId: example.id,
    form: exampleForm(example),
    /** The form is no longer the example's. */
    isEdited: false,
    /** The prediction's panel shows the text to "edit", or the cursor to "follow". */
    view: "edit",
    /** A request waits for the server. */
    isWaiting: false,
    run: null,
    race: null,
    /** The chat: {question, run}, and what is asked next. */
    turns: [],
    question: "",
    /** Passes that are shown; null for all of them. */
    shownPass: null,
    snippet: "curl",
    /** What screen readers say. */
    announcement: "",
  };
}

/** Returns what a link shows; undefined if it leads within what is shown. */
export function modeOf(hash) {
  return { "": "edit", "#edit": "edit", "#chat": "chat" }[hash];
}

/** Returns all that was asked and can be stopped. */
export function shownRuns({ run, race, turns }) {
  return [run, race?.without, turns.at(-1)?.run].filter(Boolean);
}

/** True while an answer is waited for or streams. */
export function isBusy(state) {
  return state.isWaiting || shownRuns(state).some((run) => run.isRunning);
}

/** Keeps the key for this tab only. */
export function keepApiKey(key) {
  keepStored("sessionStorage", KEY, key);
}

/** Applies a theme ("system", "light" or "dark") and keeps it. */
export function applyTheme(theme) {
  const isSystem = theme === "system";
  if (isSystem) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  keepStored("localStorage", THEME, isSystem ? "" : theme);
}
