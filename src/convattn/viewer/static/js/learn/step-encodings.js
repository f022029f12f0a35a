// Encodings compared: each score is a sum v · r(δ); v is fitted so that the softmax comes near to a target.

import { softmaxOf } from "../attention.js";
import { div, fill, followArrows, h, setProps, span, svg } from "../dom.js";
import { largestSize } from "./kernels.js";
import { choice, followPlace, placeMark, slider, windowView } from "./view.js";
import { clamp } from "../numbers.js";

/** @import { Step, Tour } from "./view.js" */

/** @typedef {{name: string, formula: string, additive: boolean, parameters: number, map: Float64Array, overlap: number}} Fitted */

const FIT_EXTENT = 7; // offsets from −7 to 7
export const FIT_SIDE = 2 * FIT_EXTENT + 1;
const FIT_LINE = Array.from({ length: FIT_SIDE }, (_, at) => at - FIT_EXTENT);

/**
 * What a head is to look at: one pixel or so, or a slanted stripe, around an offset.
 * @param {[number, number]} offset
 * @param {string} shape
 * @returns {Float64Array}  FIT_SIDE × FIT_SIDE weights
 */
export function targetMap(offset, shape) {
  return softmaxOf(
    overLattice((row, col) => {
      const [down, right] = [row - offset[0], col - offset[1]];
      if (shape === "a spot") return -(down * down + right * right);
      return -((down + right) ** 2) / 2 - (down - right) ** 2 / 16;
    }),
  );
}

/**
 * The weights v for which the softmax of v · r is nearest to a target (least Kullback–Leibler divergence), by Newton's
 * method, in shorter steps while it is far. The problem is convex.
 * @param {number[][]} features  one list over all offsets for each number in v
 * @param {ArrayLike<number>} target
 * @returns {Float64Array}  the softmax
 */
export function fitSoftmax(features, target) {
  const scaled = features.map(standardised);
  const scores = new Float64Array(target.length);
  let map = softmaxOf(scores);
  for (let step = 0; step < 40; step++) {
    const means = scaled.map((feature) => sumOfProducts(feature, map));
    const gradient = scaled.map((feature, i) => means[i] - sumOfProducts(feature, target));
    const move = solvePositive(covarianceUnder(scaled, means, map), gradient);
    const gain = sumOfProducts(gradient, move); // twice what the divergence can still fall by
    if (gain < 1e-9) break;
    scaled.forEach((feature, i) => {
      const size = move[i] / (1 + Math.sqrt(gain));
      for (let at = 0; at < scores.length; at++) scores[at] -= size * feature[at];
    });
    map = softmaxOf(scores);
  }
  return map;
}

/** @param {number[]} feature  @returns {Float64Array} with mean 0 and variance 1 */
export function standardised(feature) {
  const mean = feature.reduce((sum, value) => sum + value, 0) / feature.length;
  const spread = Math.hypot(...feature.map((value) => value - mean)) / Math.sqrt(feature.length) || 1;
  return new Float64Array(feature.map((value) => (value - mean) / spread));
}

/** @param {Float64Array[]} features @param {number[]} means @param {Float64Array} weights */
function covarianceUnder(features, means, weights) {
  const left = features.map((feature, i) => feature.map((value, at) => weights[at] * (value - means[i])));
  return features.map((feature, i) => left.map((other, j) => sumOfProducts(feature, other) + (i === j ? 1e-9 : 0)));
}

/** @param {ArrayLike<number>} one @param {ArrayLike<number>} other */
function sumOfProducts(one, other) {
  let sum = 0;
  for (let at = 0; at < one.length; at++) sum += one[at] * other[at];
  return sum;
}

/**
 * Gaussian elimination; a positive definite matrix needs no pivots.
 * @param {number[][]} matrix
 * @param {number[]} right
 * @returns {number[]}
 */
export function solvePositive(matrix, right) {
  const rows = matrix.map((row, at) => [...row, right[at]]);
  const size = rows.length;
  rows.forEach((lead, at) => {
    for (const row of rows.slice(at + 1)) {
      const share = row[at] / lead[at];
      for (let col = at; col <= size; col++) row[col] -= share * lead[col];
    }
  });
  const out = [...right];
  for (let at = size - 1; at >= 0; at--) {
    out[at] = rows[at][size];
    for (let col = at + 1; col < size; col++) out[at] -= rows[at][col] * out[col];
    out[at] /= rows[at][at];
  }
  return out;
}

/** @param {(row: number, col: number) => number} f */
const overLattice = (f) => FIT_LINE.flatMap((row) => FIT_LINE.map((col) => f(row, col)));
/** @param {number} at */
const bent = (at) => Math.sign(at) * Math.log1p(Math.abs(at));

/**
 * A score that is a sum over axes gives a product of two softmaxes; the best ones fit the target's row and column sums.
 * @param {Float64Array} target
 * @param {(axis: number, sums: Float64Array) => Float64Array} fitLine
 */
function productFit(target, fitLine) {
  const rows = new Float64Array(FIT_SIDE);
  const cols = new Float64Array(FIT_SIDE);
  target.forEach((value, at) => {
    rows[Math.floor(at / FIT_SIDE)] += value;
    cols[at % FIT_SIDE] += value;
  });
  const [down, right] = [fitLine(0, rows), fitLine(1, cols)];
  return target.map((_, at) => down[Math.floor(at / FIT_SIDE)] * right[at % FIT_SIDE]);
}

/** Waves of a sinusoidal encoding along one axis, ω_i = 10000^(−i/F), sines and cosines. @param {number} waves F */
export function waveFeatures(waves) {
  const rates = Array.from({ length: waves }, (_, at) => 10000 ** (-at / waves));
  return rates.flatMap((rate) => [
    FIT_LINE.map((at) => Math.sin(rate * at)),
    FIT_LINE.map((at) => Math.cos(rate * at)),
  ]);
}

/**
 * Fits every encoding to one target. Parameters are those of a layer of 9 heads on 16 × 16 pixels.
 * @param {[number, number]} offset
 * @param {string} shape
 * @param {number} waves
 * @param {number} [width]  of the tables per axis
 * @returns {Fitted[]}
 */
export function compareEncodings(offset, shape, waves, width = 400) {
  const target = targetMap(offset, shape);
  const [down, right] = offset;
  const quadratic = [
    overLattice((row, col) => row * row + col * col),
    overLattice((row) => row),
    overLattice((_, col) => col),
  ];
  const general = [...quadratic, overLattice((row) => row * row), overLattice((row, col) => row * col)];
  const bends = [
    [1, 0],
    [0, 1],
    [1, 1],
    [1, -1],
  ].flatMap(([u, w]) =>
    // eight units, each with its bend at the target
    [1, -1].map((sign) =>
      overLattice((row, col) => Math.max(0, sign * (u * (bent(row) - bent(down)) + w * (bent(col) - bent(right))))),
    ),
  );
  const distance = [overLattice((row, col) => Math.abs(row - down) + Math.abs(col - right))];
  const features = waveFeatures(waves);
  /** @type {[string, string, boolean, number, Float64Array][]} */
  const rows = [
    ["Quadratic", "−α‖δ − Δ‖²", true, 9 * 3, fitSoftmax(quadratic, target)],
    ["Generalised quadratic", "−½‖S(δ − Δ)‖²", false, 9 * 6, fitSoftmax(general, target)],
    ["Learned table", "T[δ]", false, 9 * 31 * 31, target],
    [
      "Learned, one table per axis",
      "a·r[δ₁] + b·s[δ₂]",
      true,
      2 * (31 + 9) * width,
      productFit(target, (_, sums) => sums),
    ],
    [
      "Sinusoidal",
      "Σ v·(sin ωδ, cos ωδ)",
      true,
      2 * 9 * 2 * waves,
      productFit(target, (_, sums) => fitSoftmax(features, sums)),
    ],
    ["Function of distance", "V·relu(U·log δ + u)", false, 2 * 64 + 64 + 64 * 9, fitSoftmax(bends, target)],
    ["Linear distance", "−m‖δ − Δ‖₁", true, 9 * 3, fitSoftmax(distance, target)],
  ];
  return rows.map(([name, formula, additive, parameters, map]) => ({
    name,
    formula,
    additive,
    parameters,
    map,
    overlap: map.reduce((sum, value, at) => sum + Math.min(value, target[at]), 0),
  }));
}

const FIT_MIDDLE = (FIT_SIDE - 1) / 2;
const FIT_LIMIT = FIT_MIDDLE - 2;

/** @param {number} share */
const matchText = (share) => `${Number((100 * share).toPrecision(3))} %`;

/** Appendix A: other functions of the offset. @param {Tour} tour @param {Element} text @returns {Step} */
export function encodingsStep(tour, text) {
  const note = /** @type {Element} */ (text.querySelector(".learn-small")); // stands below the maps
  /** @type {[number, number]} */
  let offset = [-2, 3];
  let shape = "a spot";
  let waves = 1;
  let width = 400;

  const target = windowView(FIT_MIDDLE, "Target: drag it", "learn-touch learn-target");
  const views = compareEncodings(offset, shape, waves).map(({ name }) => windowView(FIT_MIDDLE, name));
  const handle = svg("circle", { class: "learn-handle", r: 1.6 });
  target.marks.append(handle);
  setProps(target.frame, { tabindex: 0, role: "group", "aria-label": "Target of the head. Arrow keys move it." });
  const place = (/** @type {number[]} */ ...wanted) => {
    const [row, col] = wanted.map((at) => clamp(at, -FIT_LIMIT, FIT_LIMIT));
    offset = [row, col];
    tour.ask();
  };
  followPlace(target.frame, FIT_SIDE, FIT_SIDE, ([row, col]) => place(row - FIT_MIDDLE, col - FIT_MIDDLE));
  followArrows(target.frame, ([down, right]) => place(Math.round(offset[0]) + down, Math.round(offset[1]) + right));

  function paint() {
    const wanted = targetMap(offset, shape);
    const most = largestSize(wanted);
    target.heat(wanted, most);
    placeMark(handle, offset);
    const fitted = compareEncodings(offset, shape, waves, width);
    fitted.forEach(({ name, formula, parameters, additive, map, overlap }, at) => {
      views[at].heat(map, most, "");
      fill(
        views[at].caption,
        h("strong", null, name),
        span(formula),
        span(`match ${matchText(overlap)}`),
        span(`${parameters.toLocaleString("en")} parameters`),
        span(additive ? "sum over axes" : "not a sum over axes"),
      );
    });
    tour.tell(fitted.map(({ name, overlap }) => `${name} ${matchText(overlap)}`).join(", "));
  }

  return {
    stage: [
      div(
        "learn-line-up",
        choice("Target", ["a spot", "a slanted stripe"], shape, (word) => void (shape = word)),
        slider(
          "Waves of the sinusoidal, per axis",
          { min: 1, max: 8, step: 1, value: waves, text: String },
          (value) => void (waves = value),
        ).root,
        slider(
          "Width of the tables per axis",
          { min: 8, max: 512, step: 8, value: width, text: String },
          (value) => void (width = value),
        ).root,
      ),
      div("learn-gallery", target.root, ...views.map((view) => view.root)),
      note,
    ],
    paint,
  };
}
