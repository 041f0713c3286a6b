// What people can do.

import { EXAMPLES, exampleForm, firstExample } from "./examples.js";
import { raceSummary, runSummary } from "./words.js";
import { formError, requestBody, seededForm } from "./request.js";
import { Run } from "./run.js";
import { applyTheme, keepApiKey } from "./state.js";
import { getJson } from "./stream.js";

/** Where the API is: beside the page, under whatever path a proxy gives it. */
export const BASE_URL = new URL("v1", document.baseURI).href;

const FOLLOWED_MS = 100;

export class Actions {
  /** Counts what was asked for; what waited for the server meanwhile is out of date. */
  #attempt = 0;

  constructor(store) {
    this.store = store;
  }

  /** Asks the server what it serves. */
  async connect() {
    const { apiKey } = this.store.state;
    try {
      const { data } = await getJson(`${BASE_URL}/models`, apiKey);
      const models = data.map(({ id }) => id);
      const chosen = this.store.state.server.model;
      const model = models.includes(chosen) ? chosen : models[0];
      this.store.set({ server: { status: "ready", models, model, error: null } });
      this.#suggest(firstExample(model));
    } catch (error) {
      const status = error.kind === "locked" ? "locked" : "unreachable";
      this.store.set({ server: { ...this.store.state.server, status, error } });
    }
  }

  choose(exampleId) {
    const example = EXAMPLES.find(({ id }) => id === exampleId);
    this.stop();
    this.store.set({
      exampleId,
      form: exampleForm(example),
      view: "edit",
      run: null,
      race: null,
      shownPass: null,
      announcement: "",
    });
  }

  /** Shows an example that suits the model, unless somebody has begun with another one. */
  #suggest(example) {
    const { form, isWaiting, run } = this.store.state;
    const isUntouched = JSON.stringify(form) === JSON.stringify(exampleForm(firstExample("")));
    if (isUntouched && !isWaiting && run === null && example !== firstExample("")) this.choose(example.id);
  }

  edit(changes) {
    this.store.set({ form: { ...this.store.state.form, ...changes } });
  }

  /** Sends the request; the answer streams in. */
  async run() {
    if (!(await this.#isReady())) return;
    const run = this.#start(this.store.state.form, true);
    this.store.set({ run, race: null, view: "follow", shownPass: null, announcement: "The answer streams." });
    await this.#follow([run], () => runSummary(run));
  }

  /** Sends the same request without and with the prediction, at the same time. */
  async race() {
    if (!this.store.state.form.prediction || !(await this.#isReady())) return;
    const form = seededForm(this.store.state.form);
    const race = { without: this.#start(form, false), with: this.#start(form, true) };
    this.store.set({ run: race.with, race, view: "follow", shownPass: null, announcement: "The race is on." });
    await this.#follow([race.without, race.with], () => raceSummary(race));
  }

  stop() {
    this.#attempt += 1;
    const { run, race } = this.store.state;
    for (const each of [run, race?.without]) each?.stop();
    this.store.set({ isWaiting: false });
  }

  /** Shows the first passes only; null shows all. */
  show(pass) {
    this.store.set({ shownPass: pass, view: "follow" });
  }

  /** Names the model that the next requests ask. */
  setModel(model) {
    this.store.set({ server: { ...this.store.state.server, model } });
  }

  setKey(key) {
    keepApiKey(key);
    this.store.set({ apiKey: key });
    return this.connect();
  }

  setTheme(theme) {
    applyTheme(theme);
    this.store.set({ theme });
  }

  /** Stops what runs, and asks for the server if need be; false if that is in vain or no longer wanted. */
  async #isReady() {
    if (formError(this.store.state.form)) return false;
    this.stop();
    const attempt = this.#attempt;
    if (this.store.state.server.status !== "ready") {
      this.store.set({ isWaiting: true });
      await this.connect();
      if (attempt !== this.#attempt) return false;
      this.store.set({ isWaiting: false });
    }
    return this.store.state.server.status === "ready";
  }

  #start(form, withPrediction) {
    const { server, apiKey } = this.store.state;
    return new Run(`${BASE_URL}/chat/completions`, requestBody(form, server.model, { withPrediction }), {
      apiKey,
      prediction: withPrediction ? form.prediction : "",
      prompt: form.prompt,
      onChange: this.store.changed,
    });
  }

  /** Keeps clocks going until all runs have ended, and tells how, unless others are shown by then. */
  async #follow(runs, summary) {
    const timer = setInterval(this.store.changed, FOLLOWED_MS);
    await Promise.all(runs.map((run) => run.ended));
    clearInterval(timer);
    if (!runs.includes(this.store.state.run)) return;
    this.store.set({ announcement: summary() });
    const failure = runs.find((run) => run.error)?.error;
    const status = { locked: "locked", unreachable: "unreachable" }[failure?.kind];
    if (status) this.store.set({ server: { ...this.store.state.server, status, error: failure } });
  }
}
