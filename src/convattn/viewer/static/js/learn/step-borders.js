import { fill, h, oncePerFrame, svg } from "../dom.js";
import { HARD, interiorKernel } from "./bound.js";
import { comparison } from "./compare.js";
import { attendHeads, headMap } from "./heads.js";
import { convolve, namedTaps, padPicture } from "./kernels.js";
import { choice, colourBar, differenceText, numbersList, pictureView, slider, squareMark } from "./view.js";
import { sharpnessText } from "./step-sharpness.js";

/** @typedef {import("./kernels.js").PadMode} PadMode */

const REACH = 3;
const WINDOW = 2 * REACH + 1;
const TAIL = 6; // soft heads see this far

/**
 * Step 3: what heads see beyond the border.
 * @param {import("./view.js").Tour} tour
 * @returns {import("./view.js").Step}
 */
export function bordersStep(tour) {
  const { picture } = tour;
  const taps = namedTaps("Blur");
  let mode = /** @type {PadMode} */ ("zeros");
  let keys = /** @type {PadMode} */ ("replicate"); // replicate: no padding
  let sharpness = HARD;
  /** @type {import("./view.js").Place} */
  let query = [0, 0];

  const around = pictureView(WINDOW, WINDOW, "Where the nine heads look", "learn-outside");
  const corner = pictureView(WINDOW, WINDOW, "Weights of the head up and left", "learn-outside");
  const bar = colourBar("Colours of the weights");
  corner.root.append(bar.root);
  const pixel = squareMark("learn-query");
  pixel.to([REACH, REACH]);
  const strip = comparison(tour, (place) => {
    query = place;
    frame.ask();
  });
  const numbers = numbersList(["Largest difference at the border", "Largest difference inside"]);
  const control = slider(
    "Sharpness",
    { min: -0.3, max: 2, step: 0.01, value: 2, text: (value) => sharpnessText(value >= 2 ? HARD : 10 ** value) },
    (value) => {
      sharpness = value >= 2 ? HARD : 10 ** value;
      frame.ask();
    },
  );

  /** @param {import("./kernels.js").Picture} plane @param {number} width  of its padding */
  function cut(plane, width) {
    const view = new Float32Array(WINDOW * WINDOW).fill(NaN);
    for (let at = 0; at < view.length; at++) {
      const row = query[0] + width + Math.floor(at / WINDOW) - REACH;
      const col = query[1] + width + (at % WINDOW) - REACH;
      if (row >= 0 && row < plane.rows && col >= 0 && col < plane.cols) view[at] = plane.data[row * plane.cols + col];
    }
    return view;
  }

  function paint() {
    const padding = { width: keys === "replicate" ? 0 : 1, mode: keys };
    const kernel = sharpness === HARD ? taps : interiorKernel(taps, sharpness, TAIL);
    const wanted = convolve(picture, kernel, mode);
    const made = attendHeads(picture, taps, sharpness, padding);
    strip.show(wanted, made, query);
    around.gray(cut(padding.width ? padPicture(picture, 1, keys) : picture, padding.width));
    paintRings(padding);
    const map = headMap(picture, taps[0].offset, sharpness, query, padding);
    const most = map.data.reduce((one, other) => Math.max(one, other), 0);
    corner.heat(cut(map, padding.width), most, tour.theme());
    bar.paint(most, tour.theme());
    const { border, inside } = differences(wanted, made);
    numbers.values["Largest difference at the border"].textContent = differenceText(border);
    numbers.values["Largest difference inside"].textContent = differenceText(inside);
    tour.tell(`Largest difference at the border ${differenceText(border)}, inside ${differenceText(inside)}.`);
  }
  /** Rings where the heads look most, with how many look there. @param {import("./heads.js").KeyPadding} padding */
  function paintRings(padding) {
    /** @type {Map<number, number>} */
    const looks = new Map();
    for (const { offset } of taps) {
      const seen = cut(headMap(picture, offset, sharpness, query, padding), padding.width);
      const best = seen.reduce((most, value, at) => (value > (seen[most] || 0) ? at : most), 0);
      looks.set(best, (looks.get(best) ?? 0) + 1);
    }
    fill(
      around.marks,
      pixel.mark,
      ...[...looks].map(([at, heads]) =>
        svg(
          "g",
          { class: "learn-head", transform: `translate(${at % WINDOW} ${Math.floor(at / WINDOW)})` },
          svg("circle", { r: 0.36 }),
          svg("circle", { r: 0.36 }),
          heads > 1 && svg("text", null, `${heads}`),
        ),
      ),
    );
    around.canvas.setAttribute("aria-label", `Nine heads look at ${looks.size} pixels`);
  }
  /** @param {import("./kernels.js").Picture} one @param {import("./kernels.js").Picture} other */
  function differences(one, other) {
    let [border, inside] = [0, 0];
    const edge = Math.min(TAIL, Math.floor((Math.min(one.rows, one.cols) - 1) / 3));
    one.data.forEach((value, at) => {
      const [row, col] = [Math.floor(at / one.cols), at % one.cols];
      const depth = Math.min(row, col, one.rows - 1 - row, one.cols - 1 - col);
      const apart = Math.abs(value - other.data[at]);
      if (depth === 0) border = Math.max(border, apart);
      if (depth >= edge) inside = Math.max(inside, apart);
    });
    return { border, inside };
  }
  const frame = oncePerFrame(paint);

  return {
    title: "At the border, a head sees the nearest pixel there is",
    words: [
      [
        "A convolution must invent pixels beyond the border: zeros, a mirror, the other side. Attention does not have to. A softmax runs over the " +
          "pixels that exist, so a head whose centre lies outside looks at the nearest one inside, as if the border were repeated.",
      ],
      [
        "For another border, the picture is padded first, and the heads look at the padding too. Soft heads differ in one more way: near the border, less of their spread fits in, and the softmax divides it anew.",
      ],
    ],
    formula: [
      "A[q, k] = e",
      h("sup", null, "s(k − q)"),
      " / Σ e",
      h("sup", null, "s(k′ − q)"),
      h("span", { class: "learn-where" }, "k′ runs over the pixels that exist"),
    ],
    inWords: "The weight of key k for query q is e to the score, divided by the sum over the keys that exist.",
    task: ["Choose what the attention sees beyond the border until the difference vanishes. Then make the heads soft."],
    notice: [
      "Hard heads can equal any of the four borders exactly. Soft heads, compared with the blurred kernel they make, differ only near the border.",
    ],
    more: ["The paper, section 3", "https://arxiv.org/pdf/1911.03584#section.3"],
    stage: h(
      "div",
      { class: "learn-parts" },
      h(
        "div",
        { class: "learn-line-up" },
        choice(
          "Beyond the border, the convolution sees",
          /** @type {const} */ ([
            ["zeros", "zeros"],
            ["reflect", "a mirror"],
            ["circular", "the other side"],
            ["replicate", "the border again"],
          ]),
          mode,
          (value) => {
            mode = value;
            frame.ask();
          },
        ),
        choice(
          "The attention sees",
          /** @type {const} */ ([
            ["zeros", "zeros"],
            ["reflect", "a mirror"],
            ["circular", "the other side"],
            ["replicate", "nothing"],
          ]),
          keys,
          (value) => {
            keys = value;
            frame.ask();
          },
        ),
      ),
      control.root,
      h("div", { class: "learn-pair" }, around.root, corner.root),
      numbers.root,
      strip.root,
    ),
    paint,
    destroy: () => frame.stop(),
  };
}
