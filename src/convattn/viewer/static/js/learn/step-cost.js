import { fill, h } from "../dom.js";
import { logChart } from "./chart.js";
import { measureCosts } from "./costs.js";
import { RECORDED_COSTS } from "./recorded-costs.js";
import { choice, powerText } from "./view.js";

/** Colours by what is measured, the same in all charts. @type {Record<string, string>} */
const KINDS = {
  "all pairs": "learn-pairs",
  "any function of the offset (FFT)": "learn-fourier",
  "convolution, N taps": "learn-fourier",
  "separable heads": "learn-separable",
  "nine soft heads": "learn-separable",
  "hard heads": "learn-hard",
  "nine hard heads": "learn-hard",
};
const HERE = "this browser";

/** @param {string[]} words */
const pairs = (words) => words.map((word) => /** @type {[string, string]} */ ([word, word]));

/** @typedef {{name: string, points: [number, number][]}} CostLine */

/**
 * A chart of lines over N, with ticks at round powers.
 * @param {CostLine[]} lines
 * @param {string} unit
 */
function costChart(lines, unit) {
  const all = lines.flatMap(({ points }) => points);
  const [low, high] = [Math.min(...all.map(([, value]) => value)), Math.max(...all.map(([, value]) => value))];
  const [from, to] = [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high))];
  /** @type {[number, string][]} */
  const ticks = [];
  for (let tick = from; tick <= to * 1.01; tick *= 10)
    ticks.push([tick, powerText(Number(tick.toPrecision(1))).replace("1.0 · ", "")]);
  const sizes = [...new Set(all.map(([at]) => at))].sort((one, other) => one - other);
  const name = `${unit} against the number of pixels N; the table below has the numbers`;
  const chart = logChart(
    {
      low: sizes[0],
      high: sizes[sizes.length - 1],
      name: "number of pixels N",
      ticks: sizes.map((at) => [at, at.toLocaleString("en")]),
    },
    { low: from, high: to, name: unit, ticks },
    name,
  );
  chart.draw(lines.map(({ name, points }) => ({ name, points, kind: KINDS[name] ?? "learn-convolution", dots: true })));
  return chart;
}

/** @param {CostLine[]} lines @param {string} unit */
function costTable(lines, unit) {
  const sizes = [...new Set(lines.flatMap(({ points }) => points.map(([at]) => at)))].sort((one, other) => one - other);
  return h(
    "table",
    { class: "learn-table" },
    h("caption", null, `${unit}, medians`),
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        h("th", { scope: "col" }, "N"),
        ...sizes.map((size) => h("th", { scope: "col" }, size.toLocaleString("en"))),
      ),
    ),
    h(
      "tbody",
      null,
      ...lines.map(({ name, points }) =>
        h(
          "tr",
          null,
          h("th", { scope: "row" }, name),
          ...sizes.map((size) => h("td", null, powerText(points.find(([at]) => at === size)?.[1] ?? NaN))),
        ),
      ),
    ),
  );
}

/**
 * Step 6: time and memory.
 * @param {import("./view.js").Tour} tour
 * @returns {import("./view.js").Step}
 */
export function costStep(tour) {
  let shown = RECORDED_COSTS.charts[0].name;
  let stopped = false;
  /** @type {Record<string, [number, number][]>} */
  let here = {};
  let largest = 0;
  const chart = h("div", { class: "learn-wide" });
  const note = h("p", { class: "learn-small" });
  const button = h("button", { type: "button", onClick: () => void measure() }, "Measure in this browser");
  const menu = h("div", { class: "learn-line-up" });

  function layMenu() {
    const places = [...new Set(RECORDED_COSTS.charts.map(({ name }) => name.split(": ")[0]))];
    if (Object.keys(here).length) places.push(HERE);
    const [place, kind] = shown.split(": ");
    const show = (/** @type {string} */ next) => {
      shown = next;
      layMenu();
      paint();
    };
    fill(
      menu,
      choice("Measured on", pairs(places), place, (to) => show(to === HERE ? HERE : `${to}: ${kind ?? "time"}`)),
      place !== HERE && choice("What", pairs(["time", "memory"]), kind, (to) => show(`${place}: ${to}`)),
    );
  }
  async function measure() {
    button.disabled = true;
    here = {};
    largest = 0;
    const pause = () => new Promise((/** @type {(value: void) => void} */ resume) => setTimeout(resume, 0));
    await measureCosts(({ side, milliseconds, difference }) => {
      if (stopped) return;
      for (const [way, time] of Object.entries(milliseconds)) {
        if (time === null) continue;
        const name = { separable: "separable heads", convolution: "convolution 3 × 3" }[way] ?? way;
        (here[name] ??= []).push([side * side, time]);
      }
      largest = Math.max(largest, difference ?? 0);
      shown = HERE;
      layMenu();
      paint();
      tour.tell(`Measured ${side} × ${side} pixels.`);
    }, pause);
    button.disabled = false;
  }
  function paint() {
    const found = RECORDED_COSTS.charts.find(({ name }) => name === shown);
    const unit = found?.unit ?? "ms per image";
    const lines = /** @type {CostLine[]} */ (
      found?.lines ?? Object.entries(here).map(([name, points]) => ({ name, points }))
    );
    const several = lines.some(({ points }) => points.length > 1);
    fill(chart, several && costChart(lines, unit).root, costTable(lines, unit));
    note.textContent = found
      ? `${found.note} Recorded on ${RECORDED_COSTS.machine}, torch ${RECORDED_COSTS.torch}; docs/results holds every sample.`
      : "Nine heads of sharpness 1 on one channel, JavaScript, one thread: medians of 5 samples. Both ways of attention gave the " +
        `same output, within ${powerText(largest)}. All pairs stop at 32 × 32.`;
  }
  layMenu();

  return {
    title: "All pairs are costly, and not needed",
    words: [
      [
        "Attention as it is usually written gives each of N pixels a weight for each of N pixels: N² numbers per head. Twice the width of an image is then 16 times the work.",
      ],
      [
        "If the score depends on the offset alone, that is not needed. A score that is a sum over axes takes two short softmaxes per head; any other goes by Fourier transforms; hard heads are a convolution.",
      ],
    ],
    formula: ["all pairs N² · separable N (H + W) · Fourier N log N · hard N"],
    inWords:
      "All pairs cost N squared, separable scores N times height plus width, Fourier transforms N log N, hard heads N.",
    task: ["Look at the four records, then measure in this browser."],
    notice: ["Lines of slope 1 grow with the number of pixels. All pairs rise twice as steeply, and their memory too."],
    more: ["The paper, section 4", "https://arxiv.org/pdf/1911.03584#section.4"],
    stage: h("div", { class: "learn-parts" }, h("div", { class: "learn-line-up" }, menu, button), chart, note),
    paint,
    destroy: () => void (stopped = true),
  };
}
