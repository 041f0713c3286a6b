// Tokens of each pass, as a chart and as a table.

import { useEffect, useRef, useState } from "../../vendor/hooks.js";
import { html } from "../html.js";
import { drawChart } from "../chart.js";
import { sourceName } from "../words.js";

export function PassChart({ run, shownPass, theme }) {
  const box = useRef(null);
  const chart = useRef(null);
  const [isOpen, setOpen] = useState(false);
  const { passes } = run.follower;
  const colours = `${theme} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  useEffect(() => {
    chart.current = drawChart(box.current);
    return () => chart.current.destroy();
  }, [colours]);
  useEffect(() => chart.current.show(passes, shownPass), [colours, passes, passes.length, shownPass]);
  const most = Math.max(...passes.map((pass) => pass.numAccepted));
  return html`
    <section class="passes" aria-labelledby="passes-title">
      <h2 id="passes-title">Tokens of each pass</h2>
      <div
        class="chart"
        ref=${box}
        role="img"
        aria-label=${`${passes.length} passes; at most ${most} accepted drafts in one. The table has all of them.`}
      ></div>
      <ul class="legend" aria-label="Bars">
        <li><span class="swatch accepted" aria-hidden="true"></span> accepted drafts</li>
        <li><span class="swatch own" aria-hidden="true"></span> the model's own</li>
      </ul>
      <details onToggle=${(event) => setOpen(event.currentTarget.open)}>
        <summary>As a table</summary>
        <div class="table" tabindex="0" role="region" aria-label="Passes">
          <table>
            <thead>
              <tr><th scope="col">Pass</th><th scope="col">Tokens</th><th scope="col">Accepted</th><th scope="col">Drafts</th><th scope="col">Text</th></tr>
            </thead>
            <tbody>
              ${isOpen && passes.map((pass, index) => html`
                <tr>
                  <th scope="row">${index + 1}</th>
                  <td>${pass.numTokens}</td>
                  <td>${pass.numAccepted}</td>
                  <td>${pass.numAccepted > 0 ? sourceName(pass.source) : "–"}</td>
                  <td><code>${excerpt(pass.text)}</code></td>
                </tr>`)}
            </tbody>
          </table>
        </div>
      </details>
    </section>
  `;
}

const EXCERPT = 40;

function excerpt(text) {
  const line = JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"');
  return line.length > EXCERPT ? `${line.slice(0, EXCERPT)}…` : line;
}
