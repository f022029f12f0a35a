// Three ways to compute, timed where the page runs.

import { attend, sumOfAxes } from "../attention.js";
import { div, fill, h, para, setProp } from "../dom.js";
import { numberText } from "../draw.js";
import { logChart } from "./chart.js";
import { attendHeads, convolvePicture, largestDifference, layerOfHeads, namedTaps } from "./kernels.js";
import { choice, differenceText } from "./view.js";

/** @import { Picture } from "./kernels.js" */
/** @import { Step, Tour } from "./view.js" */

const TIMED_SHARPNESS = 1;
const TIMED_SAMPLES = 5;

/** @typedef {{side: number, milliseconds: Record<Way, number | null>, difference: number | null}} Measured */
/** @typedef {"all pairs" | "separable heads" | "convolution 3 × 3"} Way */

/** @param {number} side @returns {Picture} */
function noisePicture(side) {
  let seed = 1;
  return {
    rows: side,
    cols: side,
    data: Float32Array.from({ length: side * side }, () => (seed = (seed * 16807) % 2147483647) / 2147483647),
  };
}

/** The heads' output from a weight for each pair of pixels. @param {Picture} picture @returns {Picture} */
export function attendAllPairs(picture) {
  const heads = namedTaps("Blur");
  const layer = layerOfHeads(picture, heads, TIMED_SHARPNESS);
  const scores = sumOfAxes(/** @type {[Float32Array, Float32Array]} */ (layer.axes), heads.length);
  return attend({ ...picture, channels: 1 }, { ...layer, axes: null, scores });
}

/**
 * Times three ways on pictures of several sizes; all pairs only while they are few. Both ways of attention must agree.
 * @param {(measured: Measured) => void} tell  after each size
 * @param {() => Promise<void>} pause  lets the page breathe
 * @param {number[]} sides
 */
export async function measureCosts(tell, pause, sides = [8, 16, 32, 64]) {
  for (const side of sides) {
    const picture = noisePicture(side);
    /** @type {Record<Way, (() => Picture) | null>} */
    const ways = {
      "all pairs": side <= 32 ? () => attendAllPairs(picture) : null,
      "separable heads": () => attendHeads(picture, namedTaps("Blur"), TIMED_SHARPNESS),
      "convolution 3 × 3": () => convolvePicture(picture, namedTaps("Blur")),
    };
    const milliseconds = /** @type {Record<Way, number | null>} */ ({});
    for (const [way, run] of /** @type {[Way, (() => Picture) | null][]} */ (Object.entries(ways))) {
      await pause();
      milliseconds[way] = run && (await medianTime(run, pause));
    }
    const difference =
      ways["all pairs"] &&
      largestDifference(ways["all pairs"](), /** @type {() => Picture} */ (ways["separable heads"])());
    tell({ side, milliseconds, difference });
  }
}

/**
 * The median of several samples, each of as many calls as take some milliseconds, after a call that is not counted.
 * @param {() => unknown} run
 * @param {() => Promise<void>} pause
 */
async function medianTime(run, pause) {
  run();
  const samples = [];
  for (let sample = 0; sample < TIMED_SAMPLES; sample++) {
    await pause();
    const start = performance.now();
    let calls = 0;
    do {
      run();
      calls += 1;
    } while (performance.now() - start < 8);
    samples.push((performance.now() - start) / calls);
  }
  return samples.sort((one, other) => one - other)[(TIMED_SAMPLES - 1) / 2];
}

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

/** Step 6: time and memory. @param {Tour} tour @returns {Step} */
export function costStep(tour) {
  /** @type {Costs} */
  const recorded = JSON.parse(document.getElementById("convattn-costs")?.textContent ?? "");
  const charts = recorded.charts.map((chart) => ({
    ...chart,
    note: `${chart.note} Recorded on ${recorded.machine}, torch ${recorded.torch}; docs/results holds every sample.`,
  }));
  let shown = charts[0].name;
  let stopped = false;
  let measuring = false;
  const chart = div("learn-wide");
  const note = para("learn-small");
  const button = h("button", { onClick: measure }, "Measure in this browser");
  const menu = h("div");

  function layMenu() {
    const words = charts.map(({ name }) => name);
    fill(
      menu,
      choice("Measured", words, shown, (word) => void (shown = word)),
    );
  }
  async function measure() {
    if (measuring) return;
    measuring = true;
    setProp(button, "aria-disabled", true);
    /** @type {Record<string, CostLine>} */
    const lines = {};
    let largest = 0;
    charts.splice(recorded.charts.length);
    const pause = () => new Promise((/** @type {(value: void) => void} */ resume) => stopped || setTimeout(resume, 0));
    await measureCosts(({ side, milliseconds, difference }) => {
      for (const [name, time] of Object.entries(milliseconds)) {
        if (time !== null) (lines[name] ??= { name, points: [] }).points.push([side * side, time]);
      }
      largest = Math.max(largest, difference ?? 0);
      charts[recorded.charts.length] = {
        name: (shown = "this browser"),
        unit: "ms per image",
        note: `Nine heads of sharpness 1 on one channel, JavaScript, one thread: medians of 5 samples. Largest difference of both ways of attention: ${differenceText(largest)}. All pairs stop at 32 × 32.`,
        lines: Object.values(lines),
      };
      layMenu();
      paint();
      tour.tell(`Measured ${side} × ${side} pixels.`);
    }, pause);
    measuring = false;
    setProp(button, "aria-disabled", false);
  }
  function paint() {
    const { unit, lines, note: text } = charts.find(({ name }) => name === shown) ?? charts[0];
    fill(chart, lines[0].points.length > 1 && costChart(lines, unit), costTable(lines, unit));
    note.textContent = text;
  }
  layMenu();

  return {
    stage: [div("learn-line-up", menu, button), chart, note],
    paint,
    destroy: () => void (stopped = true),
  };
}
