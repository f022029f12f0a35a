// What the ways to compute cost, as it was recorded.

import { div, fill, h, para } from "../dom.js";
import { numberText } from "../draw.js";
import { logChart } from "./chart.js";
import { choice } from "./view.js";

/** @import { Step } from "./view.js" */

/** Lines of the same kind look alike in all charts. @type {[RegExp, string][]} */
const LINE_KINDS = [
  [/pairs/, "learn-second"],
  [/FFT|N taps/, "learn-fourth"],
  [/separable|soft/, "learn-first"],
  [/hard/, "learn-third"],
  [/./, "learn-fifth"],
];

/**
 * @typedef {{name: string, points: [number, number][]}} CostLine
 * @typedef {{machine: string, torch: string, charts: {name: string, unit: string, note: string, lines: CostLine[]}[]}} Costs
 */

/** @param {CostLine[]} lines */
const sizesOf = (lines) =>
  [...new Set(lines.flatMap(({ points }) => points.map(([at]) => at)))].sort((one, other) => one - other);

/**
 * A chart of lines over N, with a line of the grid for each power of ten.
 * @param {CostLine[]} lines
 * @param {string} name
 */
function costChart(lines, name) {
  const values = lines.flatMap(({ points }) => points.map(([, value]) => value));
  const [from, to] = [Math.floor(Math.log10(Math.min(...values))), Math.ceil(Math.log10(Math.max(...values)))];
  const powers = Array.from({ length: to - from + 1 }, (_, at) => 10 ** (from + at));
  const sizes = sizesOf(lines);
  const chart = logChart(
    { low: sizes[0], high: sizes[sizes.length - 1], name: "number of pixels N", ticks: sizes },
    { low: powers[0], high: powers[powers.length - 1], name, ticks: powers },
    `${name} against the number of pixels N; the table below has the numbers`,
  );
  chart.draw(
    lines.map((line) => ({ ...line, kind: LINE_KINDS.find(([name]) => name.test(line.name))?.[1] ?? "", dots: true })),
  );
  return chart.root;
}

/** @param {CostLine[]} lines @param {string} name */
function costTable(lines, name) {
  const sizes = sizesOf(lines);
  const head = sizes.map((size) => h("th", { scope: "col" }, size.toLocaleString("en")));
  const rows = lines.map(({ name, points }) => {
    const cells = sizes.map((size) => h("td", null, numberText(points.find(([at]) => at === size)?.[1] ?? NaN)));
    return h("tr", null, h("th", { scope: "row" }, name), ...cells);
  });
  return h(
    "table",
    { class: "learn-table", tabindex: 0 },
    h("caption", null, `${name}, medians`),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "N"), ...head)),
    h("tbody", null, ...rows),
  );
}

/** Appendix B: time and memory. @returns {Step} */
export function costStep() {
  /** @type {Costs} */
  const { machine, torch, charts } = JSON.parse(document.getElementById("convattn-costs")?.textContent ?? "");
  let shown = charts[0].name;
  const chart = div("learn-wide");
  const note = para("learn-small");
  const names = charts.map(({ name }) => name);
  const menu = choice("Measured", names, shown, (word) => void (shown = word));
  return {
    stage: [div("learn-line-up", menu), chart, note],
    paint() {
      const { unit, lines, note: text } = charts[names.indexOf(shown)];
      fill(chart, costChart(lines, unit), costTable(lines, unit));
      note.textContent = `${text} Recorded on ${machine}, torch ${torch}; docs/results holds every sample.`;
    },
  };
}
