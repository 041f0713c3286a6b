// What people can do.

import { editsFor, exampleForm } from "./examples.js";
import { raceSummary, runSummary } from "./words.js";
import { chatBody, formError, requestBody, seededForm } from "./request.js";
import { Run } from "./run.js";
import { applyTheme, isBusy, keepApiKey, shownRuns } from "./state.js";
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
      this.#suggest();
    } catch (error) {
      const status = error.kind === "locked" ? "locked" : "unreachable";
      this.store.set({ server: { ...this.store.state.server, status, error } });
    }
  }

  choose(exampleId) {
    const example = this.#edits().find(({ id }) => id === exampleId);
    this.stop();
    this.store.set({
      exampleId,
      form: exampleForm(example),
      isEdited: false,
      view: "edit",
      run: null,
      race: null,
      shownPass: null,
      announcement: "",
    });
  }

  /** Shows an example that suits the model, unless somebody has begun with another one. */
  #suggest() {
    const { exampleId, isEdited, run } = this.store.state;
    const isBegun = isEdited || run !== null || isBusy(this.store.state);
    const edits = this.#edits();
    if (!isBegun && !edits.some(({ id }) => id === exampleId)) this.choose(edits[0].id);
  }

  #edits() {
    return editsFor(this.store.state.server.model);
  }

  edit(changes) {
    this.store.set({ form: { ...this.store.state.form, ...changes }, isEdited: true });
  }

  /** Sends the request; the answer streams in. */
  async run() {
    if (!(await this.#isReady())) return;
    const { form, server } = this.store.state;
    const run = this.#start(requestBody(form, server.model));
    this.store.set({ run, race: null, view: "follow", shownPass: null, announcement: "The answer streams." });
    await this.#follow([run], () => runSummary(run));
  }

  /** Sends the same request without and with the prediction, at the same time. */
  async race() {
    if (!this.store.state.form.prediction || !(await this.#isReady())) return;
    const form = seededForm(this.store.state.form);
    const start = (withPrediction) =>
      this.#start(requestBody(form, this.store.state.server.model, { withPrediction }));
    const race = { without: start(false), with: start(true) };
    this.store.set({ run: race.with, race, view: "follow", shownPass: null, announcement: "The race is on." });
    await this.#follow([race.without, race.with], () => raceSummary(race));
  }

  /** Asks a question after the turns of the chat, or after those that are given. */
  async ask(question, turns = this.store.state.turns) {
    if (question.trim() === "" || !(await this.#isReady())) return;
    const { form, server, question: typed } = this.store.state;
    const run = this.#start(chatBody(form, server.model, turns, question));
    this.store.set({
      turns: [...turns, { question, run }],
      question: typed === question ? "" : typed,
      announcement: "The answer streams.",
    });
    await this.#follow([run], () => `${run.content}\n${runSummary(run)}`);
  }

  forgetChat() {
    this.stop();
    this.store.set({ turns: [], announcement: "" });
  }

  stop() {
    this.#attempt += 1;
    for (const run of shownRuns(this.store.state)) run.stop();
    this.store.set({ isWaiting: false });
  }

  /** Shows the first passes only; null shows all. */
  show(pass) {
    this.store.set({ shownPass: pass, view: "follow" });
  }

  /** Names the model that the next requests ask. */
  setModel(model) {
    this.store.set({ server: { ...this.store.state.server, model } });
    this.#suggest();
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

  #start(body) {
    return new Run(`${BASE_URL}/chat/completions`, body, this.store.state.apiKey, this.store.changed);
  }

  /** Keeps clocks going until all runs have ended, and tells how, unless others are shown by then. */
  async #follow(runs, summary) {
    const timer = setInterval(this.store.changed, FOLLOWED_MS);
    await Promise.all(runs.map((run) => run.ended));
    clearInterval(timer);
    if (!runs.some((run) => shownRuns(this.store.state).includes(run))) return;
    this.store.set({ announcement: summary() });
    const failure = runs.find((run) => run.error)?.error;
    const status = { locked: "locked", unreachable: "unreachable" }[failure?.kind];
    if (status) this.store.set({ server: { ...this.store.state.server, status, error: failure } });
  }
}
