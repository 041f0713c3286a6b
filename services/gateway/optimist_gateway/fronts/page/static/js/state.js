// What the page knows, and who wants to hear of changes.

import { exampleForm, firstExample } from "./examples.js";
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
  const example = firstExample("");
  return {
    server: { status: "unknown", models: [], model: "", error: null },
    apiKey: readStored("sessionStorage", KEY) ?? "",
    theme: readStored("localStorage", THEME) ?? "system",
    exampleId: example.id,
    form: exampleForm(example),
    /** The prediction's panel shows the text to "edit", or the cursor to "follow". */
    view: "edit",
    /** A request waits for the server. */
    isWaiting: false,
    run: null,
    race: null,
    /** Passes that are shown; null for all of them. */
    shownPass: null,
    snippet: "curl",
    /** What screen readers say. */
    announcement: "",
  };
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
