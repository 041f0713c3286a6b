// The bars of passes, drawn by uPlot.

import uPlot from "../vendor/uplot.js";

const HEIGHT = 180;
const MOST_WIDE = 28;

/** Draws into a box; `show` sets what is to be seen. */
export function drawChart(box) {
  const colours = readColours(box);
  const axis = { stroke: colours.ink, grid: { stroke: colours.line, width: 1 }, ticks: { show: false } };
  const bars = uPlot.paths.bars({ size: [0.7, MOST_WIDE], radius: 0.15 });
  const series = (label, fill) => ({ label, fill, stroke: fill, width: 0, paths: bars, points: { show: false } });
  const whole = (_chart, splits) => splits.map((split) => (Number.isInteger(split) ? split : null));
  const chart = new uPlot(
    {
      width: Math.max(box.clientWidth, 1),
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: false, range: (_chart, _least, most) => [0.5, Math.max(most, 1) + 0.5] },
        y: { range: (_chart, _least, most) => [0, Math.max(most, 1) * 1.08] },
      },
      axes: [
        { ...axis, grid: { show: false }, values: whole, size: 28 },
        { ...axis, size: 40, values: whole },
      ],
      series: [{}, series("tokens", colours.own), series("accepted drafts", colours.accepted)],
    },
    [[], [], []],
    box,
  );
  const observer = new ResizeObserver(() => {
    chart.setSize({ width: Math.max(box.clientWidth, 1), height: HEIGHT });
  });
  observer.observe(box);
  return {
    /** Shows the first passes, with room for all. */
    show(passes, count) {
      const shown = count ?? passes.length;
      const seen = (value, index) => (index < shown ? value : null);
      chart.setData([
        passes.map((_pass, index) => index + 1),
        passes.map((pass) => pass.numTokens).map(seen),
        passes.map((pass) => pass.numAccepted).map(seen),
      ]);
    },
    destroy() {
      observer.disconnect();
      chart.destroy();
    },
  };
}

/** A canvas needs colours, not names of them. */
function readColours(box) {
  const probe = document.createElement("i");
  box.append(probe);
  const read = (name) => {
    probe.className = `colour-${name}`;
    return getComputedStyle(probe).color;
  };
  const colours = { ink: read("ink"), line: read("line"), own: read("own"), accepted: read("accepted") };
  probe.remove();
  return colours;
}
