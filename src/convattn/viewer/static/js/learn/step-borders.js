import { div, fill, svg } from "../dom.js";
import {
  HARD,
  attendHeads,
  convolvePicture,
  cutAround,
  headMap,
  interiorKernel,
  namedTaps,
  offsetIn,
  padPicture,
} from "./kernels.js";
import { sharpnessText } from "./step-sharpness.js";
import { choice, comparison, differenceText, numbersList, placeMark, ringMark, slider, windowView } from "./view.js";

/** @import { PadMode, Picture } from "./kernels.js" */
/** @import { Step, Tour } from "./view.js" */

const BORDER_REACH = 2;
const BORDER_WINDOW = 2 * BORDER_REACH + 1;
const SKIPPED = "nothing (softmax skips it)";
const BORDER_TAIL = 6; // soft heads see this far

/** @type {Record<string, PadMode>} */
const BORDER_MODES = { zeros: "zeros", "a mirror": "reflect", "other side": "circular", "the edge": "replicate" };

/** Step 3: what heads see beyond the border. @param {Tour} tour @returns {Step} */
export function bordersStep(tour) {
  const { picture } = tour;
  const taps = namedTaps("Blur");
  let mode = "zeros";
  let keys = SKIPPED;
  let sharpness = HARD;

  const around = windowView(BORDER_REACH, "Where the nine heads look", "learn-outside");
  const corner = windowView(BORDER_REACH, "Weights of the head up and left", "learn-outside");
  const pixel = [...around.marks.children];
  const strip = comparison(tour, [0, 0]);
  const numbers = numbersList("Largest difference at the border", "Largest difference inside");
  const sharpnessAt = (/** @type {number} */ value) => (value >= 2 ? HARD : 10 ** value);
  const range = { min: -0.3, max: 2, step: 0.01, value: 2 };
  const text = (/** @type {number} */ value) => sharpnessText(sharpnessAt(value));
  const control = slider("Sharpness", { ...range, text }, (value) => {
    sharpness = sharpnessAt(value);
  });

  function paint() {
    const padding = keys === SKIPPED ? undefined : { width: 1, mode: BORDER_MODES[keys] };
    const kernel = sharpness === HARD ? taps : interiorKernel(taps, sharpness, BORDER_TAIL);
    const wanted = convolvePicture(picture, kernel, BORDER_MODES[mode]);
    const made = attendHeads(picture, taps, sharpness, padding);
    strip.show(wanted, made);
    const query = strip.query();
    const shift = padding ? 1 : 0;
    const cut = (/** @type {Picture} */ plane) => cutAround(plane, [query[0] + shift, query[1] + shift], BORDER_REACH);
    around.gray(cut(padding ? padPicture(picture, 1, padding.mode) : picture));
    const maps = taps.map(({ offset }) => cut(headMap(picture, offset, sharpness, query, padding)));
    paintRings(maps.map((map) => map.reduce((most, value, at) => (value > (map[most] || 0) ? at : most), 0)));
    const most = maps[0].reduce((one, other) => Math.max(one, other || 0), 0);
    corner.heat(maps[0], most);
    tour.tell(numbers.show(...bordersApart(wanted, made).map(differenceText)));
  }
  /** Rings where the heads look most, with how many look there. @param {number[]} looks */
  function paintRings(looks) {
    const rings = [...new Set(looks)].map((at) => {
      const heads = looks.filter((look) => look === at).length;
      const ring = ringMark({ class: "learn-head" });
      placeMark(ring, offsetIn(at, BORDER_WINDOW));
      if (heads > 1) ring.append(svg("text", null, heads));
      return ring;
    });
    fill(around.marks, ...pixel, ...rings);
    around.canvas.setAttribute("aria-label", `Nine heads look at ${rings.length} pixels`);
  }

  return {
    stage: [
      div(
        "learn-line-up",
        choice(
          "Beyond the border, the convolution sees",
          Object.keys(BORDER_MODES),
          mode,
          (word) => void (mode = word),
        ),
        choice(
          "Beyond the border, the attention sees",
          [...Object.keys(BORDER_MODES).slice(0, 3), keys],
          keys,
          (word) => void (keys = word),
        ),
      ),
      control.root,
      div("learn-pair", around.root, corner.root),
      numbers.root,
      strip.root,
    ],
    paint,
  };
}

/**
 * Largest differences on the outermost pixels, and where no head reaches the border.
 * @param {Picture} one
 * @param {Picture} other
 */
export function bordersApart(one, other) {
  let [border, inside] = [0, 0];
  const edge = Math.min(BORDER_TAIL, Math.floor((Math.min(one.rows, one.cols) - 1) / 3));
  one.data.forEach((value, at) => {
    const [row, col] = [Math.floor(at / one.cols), at % one.cols];
    const depth = Math.min(row, col, one.rows - 1 - row, one.cols - 1 - col);
    const apart = Math.abs(value - other.data[at]);
    if (depth === 0) border = Math.max(border, apart);
    if (depth >= edge) inside = Math.max(inside, apart);
  });
  return [border, inside];
}
