import { attend, positionRow } from "../attention.js";
import { paddingOf } from "./kernels.js";
import { quadraticAxes, sumOfAxes, tableShape } from "../scores.js";

// The attention layer of the tour: quadratic heads on one channel, each with a number for its values.

/** @typedef {import("./kernels.js").Picture} Picture */
/** @typedef {import("./kernels.js").Tap} Tap */
/** @typedef {{width: number, mode: import("./kernels.js").PadMode}} KeyPadding */

/** @type {KeyPadding} */
const UNPADDED = { width: 0, mode: "zeros" };

/**
 * A layer with a head for each tap, centred on it, with the tap's weight as its value.
 * @param {Picture} picture
 * @param {Tap[]} heads
 * @param {number} sharpness  α
 * @param {KeyPadding} [padding]  of the keys
 * @returns {import("../attention.js").LiveLayer}
 */
export function layerOfHeads({ rows, cols }, heads, sharpness, { width, mode } = UNPADDED) {
  const geometry = /** @type {import("../scores.js").LayerGeometry} */ ({
    keys: [rows + 2 * width, cols + 2 * width],
    grid: [rows, cols],
    first: [width, width],
    stride: [1, 1],
  });
  const centres = heads.flatMap(({ offset }) => offset);
  return {
    heads: heads.length,
    geometry,
    scores: new Float32Array(0),
    axes: quadraticAxes(
      centres,
      heads.map(() => sharpness),
      tableShape(geometry),
    ),
    values: Float32Array.from(heads, ({ weight }) => weight),
    outputs: 1,
    inputs: 1,
    groups: 1,
    bias: null,
    padding: paddingOf(width, mode),
  };
}

/**
 * The output of the heads for every query: y[q] = Σ_h W_h Σ_k A_h[q, k] x[k].
 * @param {Picture} picture
 * @param {Tap[]} heads
 * @param {number} sharpness
 * @param {KeyPadding} [padding]
 * @returns {Picture}
 */
export function attendHeads(picture, heads, sharpness, padding = UNPADDED) {
  return attend({ ...picture, channels: 1 }, layerOfHeads(picture, heads, sharpness, padding));
}

/**
 * Where one head looks from a query.
 * @param {Picture} picture
 * @param {[number, number]} offset  of its centre
 * @param {number} sharpness
 * @param {[number, number]} query
 * @param {KeyPadding} [padding]
 * @returns {Picture}  a weight for every key
 */
export function headMap(picture, offset, sharpness, query, padding = UNPADDED) {
  const { geometry, axes } = layerOfHeads(picture, [{ offset, weight: 1 }], sharpness, padding);
  const scores = sumOfAxes(/** @type {[Float32Array, Float32Array]} */ (axes), 1);
  return { rows: geometry.keys[0], cols: geometry.keys[1], data: positionRow(geometry, scores, 1, query) };
}
