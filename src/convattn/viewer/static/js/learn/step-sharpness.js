import { h, oncePerFrame, setProp, svg } from "../dom.js";
import { HARD, certifiedError } from "./bound.js";
import { logChart } from "./chart.js";
import { comparison } from "./compare.js";
import { attendHeads, headMap } from "./heads.js";
import { KERNELS, convolve, largestDifference, namedTaps } from "./kernels.js";
import {
  choice,
  colourBar,
  differenceText,
  followPointer,
  numbersList,
  pictureView,
  powerText,
  slider,
  squareMark,
} from "./view.js";

const REACH = 4;
const WINDOW = 2 * REACH + 1;
const [LEAST, MOST] = [0.1, 100];
const CURVE = Array.from({ length: 31 }, (_, at) => LEAST * (MOST / LEAST) ** (at / 30));
const HEAD = 2; // the head that is shown: up and right

/**
 * What float32 can tell apart: both outputs are rounded to it.
 * @param {import("./kernels.js").Picture} output
 */
export function float32Floor(output) {
  return 2 ** -23 * output.data.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

/** Writes a sharpness. @param {number} sharpness */
export const sharpnessText = (sharpness) => (sharpness >= HARD ? "hard" : `α = ${sharpness.toPrecision(2)}`);

/**
 * Step 2: from blur to a single pixel.
 * @param {import("./view.js").Tour} tour
 * @returns {import("./view.js").Step}
 */
export function sharpnessStep(tour) {
  const { picture } = tour;
  let kernel = /** @type {import("./kernels.js").KernelName} */ ("Sharpen");
  let taps = namedTaps(kernel);
  let wanted = convolve(picture, taps);
  let sharpness = 1;
  let query = tour.query;
  /** @type {number[]} */
  let measured = [];
  let later = 0;

  const around = pictureView(WINDOW, WINDOW, "Weights of one head around the pixel");
  const [pixel, centre] = [squareMark("learn-query"), squareMark("learn-centre")];
  pixel.to([REACH, REACH]);
  centre.to([REACH - 1, REACH + 1]);
  around.marks.append(centre.mark, pixel.mark);
  const bar = colourBar("Colours of the weights");
  around.root.append(bar.root);
  const chart = logChart(
    {
      low: LEAST,
      high: MOST,
      name: "sharpness α",
      ticks: [
        [0.1, "0.1"],
        [1, "1"],
        [10, "10"],
        [100, "100"],
      ],
    },
    {
      low: 1e-9,
      high: 10,
      name: "Largest error",
      ticks: [
        [1, "1"],
        [1e-3, "10⁻³"],
        [1e-6, "10⁻⁶"],
        [1e-9, "10⁻⁹"],
      ],
    },
    "Largest error against sharpness: what is measured lies below the bound until both reach the rounding of float32.",
    320,
  );
  const rule = svg("line", { class: "learn-rule", y1: 12, y2: 280 });
  const dot = svg("circle", { class: "learn-point", r: 6 });
  chart.picture.append(rule, dot);
  followPointer(
    chart.picture,
    () => [1, 1],
    ([, col]) => change(chart.valueAt(col + 0.5)),
  );
  const control = slider(
    "Sharpness",
    { min: -1, max: 2, step: 0.01, value: 0, text: (value) => sharpnessText(10 ** value) },
    (value) => change(10 ** value, false),
  );
  const numbers = numbersList(["Largest error, measured", "Bound of the certificate", "Weight on the centre"]);
  const strip = comparison(tour, (place) => {
    query = place;
    frame.ask();
  });

  /** @param {number} value @param {boolean} [tellSlider] */
  function change(value, tellSlider = true) {
    sharpness = value;
    if (tellSlider) control.set(Math.log10(value));
    frame.ask();
  }
  /** @param {typeof kernel} name */
  function start(name) {
    [kernel, taps] = [name, namedTaps(name)];
    wanted = convolve(picture, taps);
    measured = [];
    frame.ask();
    clearTimeout(later);
    measureMore();
  }
  function measureMore() {
    const until = performance.now() + 8;
    while (measured.length < CURVE.length && performance.now() < until) {
      measured.push(largestDifference(wanted, attendHeads(picture, taps, CURVE[measured.length])).value);
    }
    paintCurve();
    if (measured.length < CURVE.length) later = window.setTimeout(measureMore, 16);
  }
  function paintCurve() {
    const floor = float32Floor(wanted);
    const curve = measured
      .map((error, at) => /** @type {[number, number]} */ ([CURVE[at], error]))
      .filter(([, error]) => error > 0);
    chart.draw([
      {
        name: "bound of the certificate",
        kind: "learn-bound",
        points: CURVE.map((at) => [at, certifiedError(at, taps)]),
      },
      { name: "measured", kind: "learn-measured", points: curve },
      {
        name: "rounding of float32",
        kind: "learn-floor",
        points: [
          [LEAST, floor],
          [MOST, floor],
        ],
      },
    ]);
  }
  function paint() {
    const made = attendHeads(picture, taps, sharpness);
    const largest = strip.show(wanted, made, query);
    const map = headMap(picture, taps[HEAD].offset, sharpness, query);
    const view = new Float32Array(WINDOW * WINDOW).fill(NaN);
    for (let at = 0; at < view.length; at++) {
      const row = query[0] + Math.floor(at / WINDOW) - REACH;
      const col = query[1] + (at % WINDOW) - REACH;
      if (row >= 0 && row < map.rows && col >= 0 && col < map.cols) view[at] = map.data[row * map.cols + col];
    }
    const most = map.data.reduce((one, other) => Math.max(one, other), 0);
    around.heat(view, most, tour.theme());
    bar.paint(most, tour.theme());
    const bound = certifiedError(sharpness, taps);
    numbers.values["Largest error, measured"].textContent = differenceText(largest.value);
    numbers.values["Bound of the certificate"].textContent = powerText(bound);
    numbers.values["Weight on the centre"].textContent = `${(100 * most).toPrecision(3)} %`;
    for (const name of ["x1", "x2"]) setProp(rule, name, chart.across(sharpness));
    setProp(dot, "cx", chart.across(sharpness));
    setProp(dot, "cy", chart.down(largest.value));
    tour.tell(
      `Sharpness ${sharpness.toPrecision(2)}: largest error ${differenceText(largest.value)}, bound ${powerText(bound)}.`,
    );
  }
  const frame = oncePerFrame(paint);
  later = window.setTimeout(measureMore, 0);

  const sub = (/** @type {string} */ text) => h("sub", null, text);
  return {
    title: "Sharp heads see one pixel, soft heads blur",
    words: [
      [
        "A head gives every pixel a score, and a softmax turns the scores into weights that add up to 1. Here the score falls with the " +
          "distance from the head's centre: the larger the ",
        h("em", null, "sharpness"),
        " α, the faster.",
      ],
      [
        "So nine soft heads only resemble the convolution. How far off they can be is known beforehand, for every picture: that is the certificate.",
      ],
    ],
    formula: [
      "weight ∝ exp(−α ‖δ − Δ‖²)",
      h(
        "span",
        { class: "learn-where" },
        "error ≤ 2 ε(α) · max|x| · Σ",
        sub("h"),
        "|W",
        sub("h"),
        "|,  ε(α) ≈ 4 e",
        h("sup", null, "−α"),
      ),
    ],
    inWords:
      "The weight is proportional to e to the minus alpha times the squared distance of offset and centre. The error is at most two epsilon times the largest pixel times the sum of absolute head weights; epsilon is about four times e to the minus alpha.",
    task: ["Move the slider, or drag along the curve."],
    notice: [
      "The error falls like e",
      h("sup", null, "−α"),
      ", below the bound, until only the rounding of float32 is left, near α = 16. From then on the heads are a convolution.",
    ],
    more: ["The paper, section 3 and appendix", "https://arxiv.org/pdf/1911.03584#section.3"],
    stage: h(
      "div",
      { class: "learn-parts" },
      control.root,
      h("div", { class: "learn-pair" }, around.root, chart.root),
      numbers.root,
      strip.root,
      choice(
        "Kernel",
        Object.keys(KERNELS).map((name) => /** @type {[typeof kernel, string]} */ ([name, name])),
        kernel,
        start,
      ),
    ),
    paint() {
      paintCurve();
      paint();
    },
    destroy() {
      frame.stop();
      clearTimeout(later);
    },
  };
}
