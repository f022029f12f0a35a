import { softmaxOf } from "../attention.js";
import { calm, div, fill, followArrows, h, para, say, setProps, svg } from "../dom.js";
import { fixedText, numberText } from "../draw.js";
import { cutAround, offsetIn } from "./kernels.js";
import { standardised } from "./step-encodings.js";
import { offsetText } from "./step-offset.js";
import { choice, followPlace, numbersList, placeMark, powerText, slider, squareMark, windowView } from "./view.js";
import { nearestInside } from "../scene.js";

/** @import { Picture } from "./kernels.js" */
/** @import { Place, Step, Tour } from "./view.js" */

const SMALL_REACH = 2;
const SMALL_SIDE = 2 * SMALL_REACH + 1;
const SMALL_COUNT = SMALL_SIDE ** 2;

/** Where the head looks whose scores are of place: one pixel to the right. @type {Place} */
const LOOKS = [0, 1];

/** Time of the motion from scores to the sum, in ms. */
const MOTION_TIME = 1800;

/** @typedef {{query: number[], keys: number[][], values: number[]}} PixelVectors  of one pixel, and of all pixels */

/**
 * Returns what the pixels of a small square make of themselves: query and key are how light a pixel is and how much it
 * differs from its four neighbours, of mean 0 and deviation 1; the value is how light it is.
 * @param {Picture} picture
 * @param {Place} centre  at least three pixels from the border
 */
export function pixelVectors(picture, centre) {
  const around = cutAround(picture, centre, SMALL_REACH + 1);
  const width = SMALL_SIDE + 2;
  const places = Array.from({ length: SMALL_COUNT }, (_, at) => {
    const [row, col] = [Math.floor(at / SMALL_SIDE), at % SMALL_SIDE];
    return (row + 1) * width + col + 1;
  });
  const values = places.map((at) => around[at]);
  const edges = places.map((at) =>
    [1, -1, width, -width].reduce((sum, step) => sum + Math.abs(around[at] - around[at + step]), 0),
  );
  const [light, differs] = [standardised(values), standardised(edges)];
  return { keys: values.map((_, at) => [light[at], differs[at]]), values };
}

/** Offset of a pixel of the square from another. @param {number} key @param {number} query @returns {Place} */
function offsetBetween(key, query) {
  const [[row, col], [top, left]] = [offsetIn(key, SMALL_SIDE), offsetIn(query, SMALL_SIDE)];
  return [row - top, col - left];
}

/**
 * Attention of one pixel, sum by sum.
 * @param {{keys: number[][], values: number[]}} vectors
 * @param {number} query  number of the pixel
 * @param {boolean} byPlace  scores of the offset alone, −‖δ − Δ‖², in place of query · key
 * @param {number} temperature
 */
export function attentionOfPixel({ keys, values }, query, byPlace, temperature) {
  const scores = keys.map((key, at) => {
    if (!byPlace) return key.reduce((sum, number, n) => sum + number * keys[query][n], 0);
    return -offsetBetween(at, query).reduce((sum, steps, axis) => sum + (steps - LOOKS[axis]) ** 2, 0);
  });
  const powers = scores.map((score) => Math.exp(score / temperature));
  const weights = [...softmaxOf(scores.map((score) => score / temperature))];
  const parts = weights.map((weight, at) => weight * values[at]);
  return { scores, powers, weights, parts, output: parts.reduce((sum, part) => sum + part, 0) };
}

/** @typedef {ReturnType<typeof attentionOfPixel>} PixelAttention */

/** Stages of the motion, by what they show. */
const STAGES = ["Scores", "Weights", "× values", "Sum"];

/**
 * Returns where the bars of the pixels stand at a stage, in a picture of 250 × 210: [left, top, width, height] each.
 * @param {PixelAttention} attention
 * @param {number} stage  from 0; between two stages they are on their way
 */
export function barsAt({ scores, weights, parts }, stage) {
  const [tallest, most] = [Math.max(...scores.map(Math.abs)) || 1, Math.max(...weights)];
  let below = 195;
  const kinds = scores.map((score, at) => {
    const height = (95 * Math.abs(score)) / tallest;
    const [whole, part] = [weights[at], parts[at]].map((share) => (190 * share) / most);
    below -= 190 * parts[at];
    return [
      [10 * at + 1, score > 0 ? 100 - height : 100, 8, height],
      [10 * at + 1, 195 - whole, 8, whole],
      [10 * at + 1, 195 - part, 8, part],
      [95, below, 60, 190 * parts[at]],
    ];
  });
  const from = Math.min(Math.floor(stage), STAGES.length - 2);
  return kinds.map((kind) => kind[from].map((number, n) => number + (stage - from) * (kind[from + 1][n] - number)));
}

/** Step 1: queries, keys, softmax, values. @param {Tour} tour @returns {Step} */
export function attentionStep(tour) {
  const { picture } = tour;
  const mirrored = {
    ...picture,
    data: picture.data.map((_, at) => picture.data[at - 2 * (at % picture.cols) + picture.cols - 1]),
  };
  const centre = nearestInside(tour.query, [picture.rows - 4, picture.cols - 4]);
  const lit = /** @type {Place} */ ([Math.max(centre[0], 3), Math.max(centre[1], 3)]);
  let query = (SMALL_COUNT - 1) / 2;
  let byPlace = false;
  let mirror = false;
  let temperature = 3;
  let stage = 1;
  let motion = 0;

  const around = windowView(
    SMALL_REACH,
    "25 pixels: press one, and it asks all. Each has a bar, row by row.",
    "learn-touch",
  );
  const letters = [..."ABC"].map((letter) => svg("text", { class: "learn-letter" }, letter));
  const names = [..."ABC"].map((letter) => svg("text", { class: "learn-middle", y: 208 }, letter));
  const mark = squareMark("learn-query", [0, 0]);
  around.marks.replaceChildren(mark, ...letters);
  const bars = Array.from({ length: SMALL_COUNT }, () => svg("rect"));
  const chart = svg("svg", { class: "learn-pixel-bars", viewBox: "0 0 250 210", role: "img" }, ...bars, ...names);
  const caption = h("figcaption");
  const stages = choice("Shown", STAGES, STAGES[stage], (word) => show(STAGES.indexOf(word)));
  const table = h("table", { class: "learn-table learn-sums" });
  const numbers = numbersList("Query of the pixel", "Its output");
  const range = {
    min: -1,
    max: 2,
    step: 0.01,
    value: Math.log10(3),
    text: (/** @type {number} */ at) => `T = ${numberText(10 ** at, 2)}`,
  };
  const control = slider("Temperature", range, (value) => void (temperature = 10 ** value));
  const label = "Pixels. Arrow keys move the one that asks.";
  setProps(around.frame, { tabindex: 0, role: "group", "aria-label": label });
  followArrows(around.frame, ([down, right]) =>
    ask([Math.floor(query / SMALL_SIDE) + down, (query % SMALL_SIDE) + right]),
  );
  followPlace(around.frame, SMALL_SIDE, SMALL_SIDE, (place, first) => ask(place, first));

  /** @param {Place} place @param {boolean} [first] */
  function ask(place, first = true) {
    const [row, col] = nearestInside(place, [SMALL_SIDE, SMALL_SIDE]);
    if (query !== (query = row * SMALL_SIDE + col) || first) move();
  }
  /** From the scores to the sum. */
  function move() {
    const begin = performance.now();
    cancelAnimationFrame(motion);
    const step = () => {
      const passed = calm() ? 1 : Math.min((performance.now() - begin) / MOTION_TIME, 1);
      stage = passed * (STAGES.length - 1);
      if (passed < 1) motion = requestAnimationFrame(step);
      paint();
    };
    step();
  }
  /** @param {number} next */
  function show(next) {
    cancelAnimationFrame(motion);
    stage = next;
    tour.ask();
  }
  function paint() {
    const seen = mirror ? mirrored : picture;
    const middle = /** @type {Place} */ (mirror ? [lit[0], picture.cols - 1 - lit[1]] : lit);
    const vectors = pixelVectors(seen, middle);
    const attention = attentionOfPixel(vectors, query, byPlace, temperature);
    const { scores, weights, output } = attention;
    around.gray(Float32Array.from(vectors.values));
    placeMark(mark, offsetIn(query, SMALL_SIDE));
    const order = [...scores.keys()].sort((one, other) => scores[other] - scores[one]);
    const opened = [order[0], order[1], order[SMALL_COUNT - 1]];
    opened.forEach((at, n) => {
      const [row, col] = offsetIn(at, SMALL_SIDE);
      setProps(letters[n], { x: col, y: row });
      setProps(names[n], { x: 10 * at + 5, visibility: stage > 2 ? "hidden" : null }); // parts leave their places
    });
    barsAt(attention, stage).forEach(([x, y, width, height], at) =>
      setProps(bars[at], { x, y, width, height, class: opened.includes(at) ? "learn-on" : null }),
    );
    const at = Math.round(stage);
    const input = /** @type {HTMLInputElement} */ (stages.querySelectorAll("input")[at]);
    input.checked = true;
    const words = [
      "Scores: a bar for each key. Its query matches A best.",
      `Weights: e^(score / T), divided by their sum. Together ${fixedText(weights.reduce((sum, one) => sum + one, 0))}.`,
      "Each value, times its weight.",
      `The parts on each other: the output is ${fixedText(output)}.`,
    ];
    say(caption, words[at]);
    chart.setAttribute("aria-label", words[at]);
    paintTable(vectors, attention, opened);
    const vector = vectors.keys[query].map((number) => fixedText(number)).join(", ");
    tour.tell(numbers.show(byPlace ? `looks ${offsetText(LOOKS)} from it` : vector, fixedText(output, 3)));
  }
  /** @param {{keys: number[][], values: number[]}} vectors @param {PixelAttention} attention @param {number[]} opened */
  function paintTable({ keys, values }, { scores, powers, weights, parts }, opened) {
    const all = [...scores.keys()];
    const rest = all.filter((at) => !opened.includes(at));
    const three = (/** @type {(at: number) => string} */ text) => opened.map(text);
    const withSums = (/** @type {number[]} */ numbers, text = (/** @type {number} */ value) => fixedText(value, 3)) =>
      [...opened.map((at) => [at]), rest, all].map((places) =>
        text(places.reduce((total, at) => total + numbers[at], 0)),
      );
    const offset = (/** @type {number} */ at) => offsetText(offsetBetween(at, query));
    const vector = (/** @type {number} */ at) => keys[at].map((number) => fixedText(number, 1)).join(", ");
    const rows = [
      [byPlace ? "offset δ" : "key", ...three(byPlace ? offset : vector)],
      [byPlace ? `−‖δ − ${offsetText(LOOKS)}‖²` : "query · key", ...three((at) => fixedText(scores[at]))],
      ["e^(that / T)", ...withSums(powers, powerText)],
      ["÷ sum: weight", ...withSums(weights)],
      ["value", ...three((at) => fixedText(values[at], 3))],
      ["× weight", ...withSums(parts)],
    ];
    const heads = ["", ..."ABC", "rest", "sum"];
    fill(
      table,
      h("caption", null, "Softmax for the two best keys, A and B, and the worst, C"),
      h("thead", null, h("tr", null, ...heads.map((text) => h("th", { scope: "col" }, text)))),
      h(
        "tbody",
        null,
        ...rows.map(([name, ...cells]) =>
          h("tr", null, h("th", { scope: "row" }, name), ...heads.slice(1).map((_, at) => h("td", null, cells[at]))),
        ),
      ),
    );
  }

  return {
    stage: [
      div(
        "learn-line-up",
        choice("Scores come from", ["content", "place"], "content", (word) => void (byPlace = word === "place")),
        choice("Picture", ["as it is", "mirrored"], "as it is", (word) => void (mirror = word === "mirrored")),
      ),
      div("learn-pair", around.root, h("figure", { class: "learn-view" }, chart, caption)),
      div("learn-line-up", stages, control.root),
      numbers.root,
      table,
      para(
        "learn-small",
        "Query and key: how light a pixel is, how much it differs from its neighbours. Value: how light. In a network, learned matrices make all three.",
      ),
    ],
    paint,
    destroy: () => cancelAnimationFrame(motion),
  };
}
