// Puts the page together.

import { render } from "../vendor/preact.js";
import { Actions } from "./actions.js";
import { html } from "./html.js";
import { App } from "./panels/app.js";
import { applyTheme, initialState, modeOf, Store } from "./state.js";

const store = new Store(initialState());
const actions = new Actions(store);
const root = document.getElementById("page");

applyTheme(store.state.theme);
store.subscribe((state) => render(html`<${App} state=${state} actions=${actions} />`, root));
store.changed();
actions.connect();

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", store.changed);
addEventListener("hashchange", () => store.set({ mode: modeOf(location.hash) ?? store.state.mode }));
document.addEventListener("keydown", (event) => {
  const isEnter = event.key === "Enter" && (event.ctrlKey || event.metaKey);
  if (isEnter && store.state.mode === "edit") {
    event.preventDefault();
    if (event.repeat) return;
    if (event.shiftKey) actions.race();
    else actions.run();
  } else if (event.key === "Escape") {
    actions.stop();
  }
});
