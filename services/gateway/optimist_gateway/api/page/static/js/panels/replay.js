// Goes through the passes again: forward passes are too quick to watch.

import { useEffect, useState } from "../../vendor/hooks.js";
import { html } from "../html.js";
import { plural } from "../words.js";

const PASS_MS = 450;

export function Replay({ run, shownPass, actions }) {
  const [isPlaying, setPlaying] = useState(false);
  const numPasses = run.follower.passes.length;
  const shown = shownPass ?? numPasses;
  useEffect(() => {
    if (!isPlaying) return undefined;
    const timer = setTimeout(() => {
      if (shown < numPasses) actions.show(shown + 1);
      else setPlaying(false);
    }, PASS_MS);
    return () => clearTimeout(timer);
  }, [isPlaying, shown, numPasses]);
  if (run.isRunning || numPasses === 0) return null;
  const toggle = () => {
    if (!isPlaying && shown === numPasses) actions.show(0);
    setPlaying(!isPlaying);
  };
  const move = (event) => {
    setPlaying(false);
    actions.show(Number(event.target.value));
  };
  return html`
    <div class="replay">
      <button type="button" onClick=${toggle}>${isPlaying ? "Pause" : "Replay"}</button>
      <input
        type="range"
        min="0"
        max=${numPasses}
        value=${shown}
        aria-label="Passes shown"
        aria-valuetext=${`${shown} of ${plural(numPasses, "pass", "passes")}`}
        onInput=${move}
      />
      <output>pass ${shown} of ${numPasses}</output>
    </div>
  `;
}
