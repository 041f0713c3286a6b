// Puts the page together.

import { render } from "../vendor/preact.js";
import { Actions } from "./actions.js";
import { html } from "./html.js";
import { App } from "./panels/app.js";
import { applyTheme, initialState, Store } from "./state.js";

const store = new Store(initialState());
const actions = new Actions(store);
const root = document.getElementById("page");

applyTheme(store.state.theme);
store.subscribe((state) => render(html`<${App} state=${state} actions=${actions} />`, root));
store.changed();
actions.connect();

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", store.changed);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (event.repeat) return;
    if (event.shiftKey) actions.race();
    else actions.run();
  } else if (event.key === "Escape") {
    actions.stop();
  }
});
