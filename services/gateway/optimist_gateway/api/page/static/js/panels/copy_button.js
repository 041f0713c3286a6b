// Copies a text.

import { useState } from "../../vendor/hooks.js";
import { html } from "../html.js";

const SHOWN_MS = 2000;

export function CopyButton({ text, what }) {
  const [label, setLabel] = useState("Copy");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setLabel("Copied");
    } catch {
      // Browsers refuse outside of https and loopback.
      setLabel("Not allowed");
    }
    setTimeout(() => setLabel("Copy"), SHOWN_MS);
  };
  return html`
    <button type="button" class="quiet" onClick=${copy}>
      <span aria-live="polite">${label}</span><span class="visually-hidden"> ${what}</span>
    </button>
  `;
}
