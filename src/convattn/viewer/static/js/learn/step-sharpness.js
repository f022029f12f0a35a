import { div, setProps, svg } from "../dom.js";
import { numberText } from "../draw.js";
import { logChart } from "./chart.js";
import {
  HARD,
  KERNELS,
  attendHeads,
  certifiedError,
  convolvePicture,
  cutAround,
  headMap,
  largestDifference,
  largestSize,
  namedTaps,
} from "./kernels.js";
import { choice, comparison, followPlace, numbersList, powerText, slider, squareMark, windowView } from "./view.js";

/** @import { Picture } from "./kernels.js" */
/** @import { Step, Tour } from "./view.js" */

const MAP_REACH = 4;
const SOFTEST = 0.1;
const SHARPEST = 100;
const CURVE_AT = Array.from({ length: 31 }, (_, at) => SOFTEST * (SHARPEST / SOFTEST) ** (at / 30));
const SHOWN_HEAD = 2; // the head that is shown: up and right

/** What float32 can tell apart: both outputs are rounded to it. @param {Picture} output */
export const float32Floor = (output) => 2 ** -23 * largestSize(output.data);

/** @param {number} sharpness */
export const sharpnessText = (sharpness) => (sharpness >= HARD ? "hard" : `α = ${numberText(sharpness, 2)}`);

/** Step 2: from blur to a single pixel. @param {Tour} tour @returns {Step} */
export function sharpnessStep(tour) {
  const { picture } = tour;
  let taps = namedTaps("Sharpen");
  let wanted = convolvePicture(picture, taps);
  let sharpness = 1;
  /** @type {number[]} */
  let measured = [];
  let later = window.setTimeout(measureMore, 0);

  const around = windowView(MAP_REACH, "Weights of one head around the pixel");
  around.marks.prepend(squareMark("learn-centre", [-1, 1]));
  const chart = logChart(
    { low: SOFTEST, high: SHARPEST, name: "sharpness α", ticks: [0.1, 1, 10, 100] },
    { low: 1e-9, high: 10, name: "Largest error", ticks: [1e-9, 1e-6, 1e-3, 1] },
    "Largest error against sharpness: what is measured lies below the bound; both end at the rounding of float32.",
    320,
  );
  const rule = svg("line", { class: "learn-rule", y1: 12, y2: 280 });
  const dot = svg("circle", { class: "learn-point", r: 6 });
  chart.picture.append(rule, dot);
  followPlace(chart.picture, 1, 1, ([, col]) => {
    sharpness = chart.valueAt(col + 0.5);
    control.set(Math.log10(sharpness));
    tour.ask();
  });
  const range = { min: -1, max: 2, step: 0.01, value: 0, text: (/** @type {number} */ at) => sharpnessText(10 ** at) };
  const control = slider("Sharpness", range, (value) => {
    sharpness = 10 ** value;
  });
  const numbers = numbersList("Largest error", "Weight on the centre");
  const strip = comparison(tour, tour.query);

  /** @param {string} name */
  function start(name) {
    taps = namedTaps(name);
    wanted = convolvePicture(picture, taps);
    measured = [];
    clearTimeout(later);
    measureMore();
  }
  function measureMore() {
    const until = performance.now() + 8;
    while (measured.length < CURVE_AT.length && performance.now() < until) {
      measured.push(largestDifference(wanted, attendHeads(picture, taps, CURVE_AT[measured.length])));
    }
    const floor = float32Floor(wanted);
    const points = measured.map((error, at) => /** @type {[number, number]} */ ([CURVE_AT[at], error]));
    chart.draw([
      {
        name: "bound, and rounding",
        kind: "learn-second",
        points: CURVE_AT.map((at) => [at, certifiedError(at, taps) + floor]),
      },
      { name: "measured", kind: "learn-first", points: points.filter(([, error]) => error > 0) },
      {
        name: "rounding of float32",
        kind: "learn-fourth",
        points: [
          [SOFTEST, floor],
          [SHARPEST, floor],
        ],
      },
    ]);
    if (measured.length < CURVE_AT.length) later = window.setTimeout(measureMore, 16);
  }
  function paint() {
    const query = strip.query();
    const largest = strip.show(wanted, attendHeads(picture, taps, sharpness));
    const map = headMap(picture, taps[SHOWN_HEAD].offset, sharpness, query);
    const most = largestSize(map.data);
    around.heat(cutAround(map, query, MAP_REACH), most);
    const allowed = powerText(certifiedError(sharpness, taps) + float32Floor(wanted));
    const [down, right] = taps[SHOWN_HEAD].offset;
    const [centre] = cutAround(map, [query[0] + down, query[1] + right], 0); // NaN outside the picture
    const share = centre > 0.999 && centre < 1 ? "over 99.9" : (100 * centre).toPrecision(3);
    const weight = Number.isNaN(centre) ? "outside" : `${share} %`;
    const said = numbers.show(`${powerText(largest)}, at most ${allowed} allowed`, weight);
    tour.tell(`${sharpnessText(sharpness)}. ${said}`);
    const across = chart.across(sharpness);
    setProps(rule, { x1: across, x2: across });
    setProps(dot, { cx: across, cy: chart.down(largest) });
  }

  return {
    stage: [
      control.root,
      div("learn-pair learn-stack", around.root, chart.root),
      numbers.root,
      strip.root,
      choice("Kernel", Object.keys(KERNELS), "Sharpen", start),
    ],
    paint,
    destroy: () => clearTimeout(later),
  };
}
