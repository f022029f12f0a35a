// Numbers of one row of attention: what a head looks at from one query. `docs/how-to/analyse.md` names them; here they are of
// one query, in steps of the layer's keys, and there in steps of its queries.

import { partOf } from "./numbers.js";
import { cellCentre } from "./scene.js";

/** @import { LayerRows } from "./rows.js" */
/** @import { Pair, SceneLayer } from "./scene.js" */

/**
 * @typedef {object} RowNumbers
 * @property {Pair | null} shift   mean displacement (down, right); null for a query without a place
 * @property {number} spread       √(tr Cov δ); NaN for a query without a place
 * @property {number} entropy      of the attention on positions, in nats
 * @property {number} hardShare    largest weight on a position
 * @property {number} prefixShare  attention on prefix tokens
 * @property {number[]} prefix     weight on each of them
 */

/**
 * Returns the displacement of every key row and column from a query, in steps of the keys.
 * @param {SceneLayer} layer
 * @param {Pair} query cell on the layer's grid
 * @returns {[Float64Array, Float64Array]}
 */
export function displacements(layer, query) {
  const centre = cellCentre(layer.place, query);
  const along = (/** @type {0 | 1} */ axis) =>
    Float64Array.from(
      { length: layer.keys.grid[axis] },
      (_, key) => (layer.keys.first[axis] + layer.keys.step[axis] * key - centre[axis]) / layer.keys.step[axis],
    );
  return [along(0), along(1)];
}

/**
 * Computes the numbers of a head from its row. Weights count by size, as in a head report; keys that the query cannot
 * look at (NaN) do not.
 * @param {SceneLayer} layer
 * @param {LayerRows} rows
 * @param {number} head
 * @returns {RowNumbers}
 */
export function rowNumbers(layer, rows, head) {
  const { keyRows, keyCols, query } = rows;
  const size = keyRows * keyCols;
  const weights = partOf(rows.weights, head, size);
  const tokens = rows.heads ? rows.prefix.length / rows.heads : 0;
  const prefix = Array.from(partOf(rows.prefix, head, tokens));
  const placed = !("prefix" in query);
  const [down, across] = displacements(layer, placed ? query : [0, 0]);

  let [mass, sumDown, sumAcross, sumSquares, logs] = [0, 0, 0, 0, 0];
  let largest = 0;
  for (let row = 0, key = 0; row < keyRows; row++) {
    for (let col = 0; col < keyCols; col++, key++) {
      const weight = Math.abs(weights[key]);
      if (!(weight > 0)) continue;
      mass += weight;
      sumDown += weight * down[row];
      sumAcross += weight * across[col];
      sumSquares += weight * (down[row] ** 2 + across[col] ** 2);
      logs += weight * Math.log(weight);
      largest = Math.max(largest, weight);
    }
  }
  const shift = /** @type {Pair} */ ([sumDown / mass, sumAcross / mass]);
  const variance = sumSquares / mass - shift[0] ** 2 - shift[1] ** 2;
  const onPrefix = prefix.reduce((sum, weight) => sum + Math.abs(weight), 0);
  return {
    shift: placed && mass > 0 ? shift : null,
    spread: placed && mass > 0 ? Math.sqrt(Math.max(variance, 0)) : NaN,
    entropy: mass > 0 ? Math.max(Math.log(mass) - logs / mass, 0) : NaN,
    hardShare: largest,
    prefixShare: mass + onPrefix > 0 ? onPrefix / (mass + onPrefix) : 0,
    prefix,
  };
}

/**
 * Returns the logarithm of each weight relative to the largest of its head: scores before the softmax, up to a constant.
 * @param {Float32Array} weights heads × keys
 * @param {number} heads
 * @returns {Float32Array} 0 for the largest, −∞ for a weight of zero, NaN where the query cannot look
 */
export function relativeScores(weights, heads) {
  const logs = weights.map((weight) => (weight > 0 ? Math.log(weight) : Number.isNaN(weight) ? NaN : -Infinity));
  return belowLargest(logs, heads);
}

/**
 * Takes the largest score of each head off its scores.
 * @param {Float32Array} scores heads × keys
 * @param {number} heads
 * @returns {Float32Array}
 */
export function belowLargest(scores, heads) {
  const size = scores.length / heads;
  const made = new Float32Array(scores.length);
  for (let head = 0; head < heads; head++) {
    const [, largest] = finiteLimits(partOf(scores, head, size));
    for (let key = head * size; key < (head + 1) * size; key++) made[key] = scores[key] - largest;
  }
  return made;
}

/**
 * @param {ArrayLike<number>} values
 * @returns {[number, number]} the smallest and the largest finite value; ∞ and −∞ if there is none
 */
export function finiteLimits(values) {
  let [low, high] = [Infinity, -Infinity];
  for (let n = 0; n < values.length; n++) {
    const value = values[n];
    if (value < low && value > -Infinity) low = value;
    if (value > high && value < Infinity) high = value;
  }
  return [low, high];
}

/** Lowest score of a scale that is shared, below which a weight is less than 1 / 20000 of the largest. */
const COMMON_FLOOR = -10;

/**
 * Returns the limits of the colours of maps.
 * @param {"common" | "own" | number} scale
 * @param {"weights" | "scores"} values
 * @param {ArrayLike<number>} own values of this map
 * @param {() => Iterable<ArrayLike<number>>} all values of all maps
 * @returns {[number, number]} low and high
 */
export function colourLimits(scale, values, own, all) {
  if (values === "scores") {
    if (typeof scale === "number") return [-scale, 0];
    if (scale === "own") return [Math.min(finiteLimits(own)[0], -1e-6), 0];
    let low = 0;
    for (const map of all()) low = Math.min(low, Math.max(finiteLimits(map)[0], COMMON_FLOOR));
    return [low || COMMON_FLOOR, 0];
  }
  if (typeof scale === "number") return [0, scale];
  let [low, high] = [0, 0];
  for (const map of scale === "own" ? [own] : all()) {
    const [smallest, largest] = finiteLimits(map);
    [low, high] = [Math.min(low, smallest), Math.max(high, largest)];
  }
  return [low, high > low ? high : low + 1];
}

/**
 * Returns the radius around a centre that holds a share of the attention exp(−α r²) in the plane.
 * @param {number} sharpness α
 * @param {number} share 0 … 1
 * @returns {number}
 */
export function massRadius(sharpness, share) {
  return Math.sqrt(-Math.log(1 - share) / sharpness);
}
