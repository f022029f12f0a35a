import { addProduct, partOf } from "./numbers.js";

/** @import { Padding, Pair } from "./scene.js" */

/**
 * Where queries and keys stand, and the scores of displacements, as `docs/explanation/theory.md` §1 defines them.
 * @typedef {object} LayerGeometry  where queries stand among the keys
 * @property {Pair} keys  rows and columns of the padded image
 * @property {Pair} grid  rows and columns of the queries
 * @property {Pair} first  key at which query (0, 0) stands
 * @property {Pair} stride  keys from one query to the next
 */

/**
 * Returns the sizes of a score table, and its lowest displacements.
 * @param {LayerGeometry} geometry
 * @returns {{lowest: Pair, size: Pair}}
 */
export function tableShape(geometry) {
  const { keys, grid, first, stride } = geometry;
  const last = (/** @type {0 | 1} */ axis) => first[axis] + stride[axis] * (grid[axis] - 1);
  return { lowest: [-last(0), -last(1)], size: [keys[0] - first[0] + last(0), keys[1] - first[1] + last(1)] };
}

/**
 * Scores −α‖δ − Δ‖² of every displacement along each axis; their sum is the score.
 * @param {ArrayLike<number>} centres  Δ (heads, 2)
 * @param {ArrayLike<number>} sharpness  α (heads)
 * @param {{lowest: Pair, size: Pair}} shape
 * @returns {[Float32Array, Float32Array]}
 */
export function quadraticAxes(centres, sharpness, { lowest, size }) {
  const along = (/** @type {0 | 1} */ axis) => {
    const scores = new Float32Array(sharpness.length * size[axis]);
    for (let head = 0; head < sharpness.length; head++) {
      for (let i = 0; i < size[axis]; i++) {
        scores[head * size[axis] + i] = -sharpness[head] * (lowest[axis] + i - centres[2 * head + axis]) ** 2;
      }
    }
    return scores;
  };
  return [along(0), along(1)];
}

/**
 * Adds the scores of the axes up to a table (heads, rows, cols).
 * @param {[Float32Array, Float32Array]} axes
 * @param {number} heads
 * @returns {Float32Array}
 */
export function sumOfAxes([rows, cols], heads) {
  const [down, across] = [rows.length / heads, cols.length / heads];
  const table = new Float32Array(heads * down * across);
  for (let head = 0, at = 0; head < heads; head++) {
    for (let i = 0; i < down; i++) {
      for (let j = 0; j < across; j++) table[at++] = rows[head * down + i] + cols[head * across + j];
    }
  }
  return table;
}

/**
 * Attention of heads that score displacements: weights, and the output of a layer.
 * @typedef {{rows: number, cols: number, channels: number, data: Float32Array}} Features  pixel by pixel, row by row
 * @typedef {object} LiveLayer  a layer that is computed in the page
 * @property {number} heads
 * @property {LayerGeometry} geometry
 * @property {Float32Array} scores  (heads, displacements of rows, of cols), from the lowest to the highest
 * @property {[Float32Array, Float32Array] | null} axes  scores of each axis (heads, displacements), if they add up
 * @property {Float32Array} values  W_h (heads, outputs, inputs / groups)
 * @property {number} outputs
 * @property {number} inputs
 * @property {number} groups
 * @property {Float32Array | null} bias
 * @property {Padding} padding
 */

/** Smaller weights are left out, as in the library: twelve digits below what rounding leaves of an output. */
const LEAST_WEIGHT = 1.0842021724855044e-19;

/**
 * Cuts the scores of one query out of the table.
 * @param {LayerGeometry} geometry
 * @param {Float32Array} scores
 * @param {number} heads
 * @param {Pair} query
 * @returns {Float32Array}  (heads, key rows, key cols)
 */
export function positionScores(geometry, scores, heads, query) {
  const { keys, first, stride } = geometry;
  const { lowest, size } = tableShape(geometry);
  const top = -lowest[0] - first[0] - stride[0] * query[0];
  const left = -lowest[1] - first[1] - stride[1] * query[1];
  const row = new Float32Array(heads * keys[0] * keys[1]);
  for (let head = 0, at = 0; head < heads; head++) {
    for (let i = 0; i < keys[0]; i++, at += keys[1]) {
      const start = (head * size[0] + top + i) * size[1] + left;
      row.set(scores.subarray(start, start + keys[1]), at);
    }
  }
  return row;
}

/**
 * Weights of one query: a softmax over the keys for each head.
 * @param {LayerGeometry} geometry
 * @param {Float32Array} scores
 * @param {number} heads
 * @param {Pair} query
 * @returns {Float32Array}  (heads, key rows, key cols)
 */
export function positionRow(geometry, scores, heads, query) {
  const row = positionScores(geometry, scores, heads, query);
  const count = geometry.keys[0] * geometry.keys[1];
  for (let head = 0; head < heads; head++) softmaxInPlace(row, head * count, count);
  return row;
}

/**
 * Replaces scores by their softmax.
 * @param {Float32Array | Float64Array} scores
 * @param {number} start
 * @param {number} count
 */
function softmaxInPlace(scores, start, count) {
  let largest = -Infinity;
  for (let i = start; i < start + count; i++) largest = Math.max(largest, scores[i]);
  const [powers, first] = scores instanceof Float64Array ? [scores, start] : [new Float64Array(count), 0];
  let sum = 0;
  for (let i = 0; i < count; i++) sum += powers[first + i] = Math.exp(scores[start + i] - largest);
  for (let i = 0; i < count; i++) scores[start + i] = powers[first + i] / sum;
}

/** @param {ArrayLike<number>} scores @returns {Float64Array} their softmax */
export function softmaxOf(scores) {
  const weights = new Float64Array(scores);
  softmaxInPlace(weights, 0, weights.length);
  return weights;
}

/**
 * Computes a layer: y[q] = b + Σ_h W_h Σ_k A_h[q, k] x[k].
 * @param {Features} features
 * @param {LiveLayer} layer
 * @returns {Features}
 */
export function attend(features, layer) {
  if (features.channels !== layer.inputs) {
    throw new Error(`the layer takes ${layer.inputs} channels, and the features have ${features.channels}`);
  }
  const keys = padFeatures(features, layer.padding);
  const { grid, keys: lattice } = layer.geometry;
  if (keys.rows !== lattice[0] || keys.cols !== lattice[1]) {
    throw new Error(`the layer's keys are ${lattice.join(" × ")}, and the features give ${keys.rows} × ${keys.cols}`);
  }
  const pixels = grid[0] * grid[1];
  const sums = new Float64Array(pixels * layer.outputs);
  if (layer.bias) for (let i = 0; i < sums.length; i++) sums[i] = layer.bias[i % layer.outputs];
  const mixed = new Float64Array(pixels * layer.inputs);
  for (let head = 0; head < layer.heads; head++) {
    mixed.fill(0);
    if (layer.axes) mixByAxis(keys, layer, layer.axes, head, mixed);
    else mixByTable(keys, layer, head, mixed);
    addMapped(mixed, layer, head, pixels, sums);
  }
  return { rows: grid[0], cols: grid[1], channels: layer.outputs, data: new Float32Array(sums) };
}

/**
 * Makes the keys from features: spreads them, pads them.
 * @param {Features} features
 * @param {Padding} padding
 * @returns {Features}
 */
export function padFeatures(features, { pairs, mode, spread }) {
  const along = (/** @type {0 | 1} */ axis) => {
    const size = ((axis ? features.cols : features.rows) - 1) * spread[axis] + 1;
    const [before, after] = pairs[axis];
    const sources = new Int32Array(Math.max(0, before + size + after));
    for (let i = 0; i < sources.length; i++) {
      const from = sourceOf(i - before, size, mode);
      sources[i] = from < 0 || from % spread[axis] ? -1 : from / spread[axis];
    }
    return sources;
  };
  const [rows, cols] = [along(0), along(1)];
  const { channels, data } = features;
  const padded = new Float32Array(rows.length * cols.length * channels);
  for (let i = 0, at = 0; i < rows.length; i++) {
    for (let j = 0; j < cols.length; j++, at += channels) {
      if (rows[i] < 0 || cols[j] < 0) continue;
      const start = (rows[i] * features.cols + cols[j]) * channels;
      padded.set(data.subarray(start, start + channels), at);
    }
  }
  return { rows: rows.length, cols: cols.length, channels, data: padded };
}

/**
 * @param {number} at  place on the spread image; may be outside
 * @param {number} size
 * @param {Padding["mode"]} mode
 * @returns {number}  place inside whose pixel is taken; −1 stands for zeros
 */
function sourceOf(at, size, mode) {
  if (at >= 0 && at < size) return at;
  if (mode === "reflect") return at < 0 ? -at : 2 * (size - 1) - at;
  if (mode === "replicate") return at < 0 ? 0 : size - 1;
  return mode === "circular" ? (at + size) % size : -1;
}

/**
 * Takes means over the keys, first along columns of keys, then along rows: one softmax for each axis.
 * @param {Features} keys
 * @param {LiveLayer} layer
 * @param {[Float32Array, Float32Array]} axes
 * @param {number} head
 * @param {Float64Array} mixed  (queries, channels), zero at first
 */
function mixByAxis(keys, layer, axes, head, mixed) {
  const { grid } = layer.geometry;
  const { cols, channels, data } = keys;
  const [down, across] = [axisWeights(layer, axes[0], head, 0), axisWeights(layer, axes[1], head, 1)];
  const line = new Float64Array(cols * channels);
  for (let i = 0; i < grid[0]; i++) {
    line.fill(0);
    for (let k = 0; k < keys.rows; k++) {
      const weight = down[i * keys.rows + k];
      if (weight < LEAST_WEIGHT) continue;
      for (let c = 0, at = k * line.length; c < line.length; c++) line[c] += weight * data[at++];
    }
    for (let j = 0; j < grid[1]; j++) {
      const start = (i * grid[1] + j) * channels;
      for (let k = 0; k < cols; k++) {
        const weight = across[j * cols + k];
        if (weight < LEAST_WEIGHT) continue;
        for (let c = 0, at = k * channels; c < channels; c++) mixed[start + c] += weight * line[at++];
      }
    }
  }
}

/**
 * @param {LiveLayer} layer
 * @param {Float32Array} scores  (heads, displacements)
 * @param {number} head
 * @param {0 | 1} axis
 * @returns {Float64Array}  (queries, keys) along the axis
 */
function axisWeights({ geometry, heads }, scores, head, axis) {
  const [queries, keys] = [geometry.grid[axis], geometry.keys[axis]];
  const size = scores.length / heads;
  const weights = new Float64Array(queries * keys);
  for (let q = 0; q < queries; q++) {
    const start = head * size + geometry.stride[axis] * (queries - 1 - q);
    weights.set(scores.subarray(start, start + keys), q * keys);
    softmaxInPlace(weights, q * keys, keys);
  }
  return weights;
}

/**
 * Takes means over the keys with a weight for each pair of query and key.
 * @param {Features} keys
 * @param {LiveLayer} layer
 * @param {number} head
 * @param {Float64Array} mixed  (queries, channels), zero at first
 */
function mixByTable(keys, layer, head, mixed) {
  const { grid, stride } = layer.geometry;
  const { size } = tableShape(layer.geometry);
  const table = partOf(layer.scores, head, size[0] * size[1]);
  const powers = powersOf(table);
  const row = new Float64Array(keys.rows * keys.cols);
  for (let i = 0; i < grid[0]; i++) {
    for (let j = 0; j < grid[1]; j++) {
      const corner = stride[0] * (grid[0] - 1 - i) * size[1] + stride[1] * (grid[1] - 1 - j);
      const sum = cutRow(powers, corner, size[1], keys, row);
      if (!(sum > Number.MIN_VALUE * 2 ** 100)) {
        cutRow(table, corner, size[1], keys, row); // every power is too small: the largest score of this query counts
        softmaxInPlace(row, 0, row.length);
      } else for (let k = 0; k < row.length; k++) row[k] /= sum;
      const start = (i * grid[1] + j) * keys.channels;
      for (let k = 0; k < row.length; k++) {
        if (row[k] < LEAST_WEIGHT) continue;
        for (let c = 0, at = k * keys.channels; c < keys.channels; c++) mixed[start + c] += row[k] * keys.data[at++];
      }
    }
  }
}

/** @param {Float32Array} table @returns {Float64Array} e^(score − largest) */
function powersOf(table) {
  let largest = -Infinity;
  for (const score of table) largest = Math.max(largest, score);
  return Float64Array.from(table, (score) => Math.exp(score - largest));
}

/**
 * @param {Float32Array | Float64Array} table
 * @param {number} corner  index of the displacement to key (0, 0)
 * @param {number} width  of the table
 * @param {Features} keys
 * @param {Float64Array} row  where to write
 * @returns {number}  the sum
 */
function cutRow(table, corner, width, keys, row) {
  let sum = 0;
  for (let i = 0, at = 0; i < keys.rows; i++) {
    for (let j = 0, from = corner + i * width; j < keys.cols; j++) sum += row[at++] = table[from++];
  }
  return sum;
}

/**
 * Adds W_h · mixed to the sums.
 * @param {Float64Array} mixed
 * @param {LiveLayer} layer
 * @param {number} head
 * @param {number} pixels
 * @param {Float64Array} sums
 */
function addMapped(mixed, { values, inputs, outputs, groups }, head, pixels, sums) {
  const [width, height] = [inputs / groups, outputs / groups];
  for (let group = 0; group < groups; group++) {
    const first = (head * outputs + group * height) * width;
    const matrix = values.subarray(first, first + height * width);
    for (let pixel = 0; pixel < pixels; pixel++) {
      addProduct(matrix, width, height, mixed, pixel * inputs + group * width, sums, pixel * outputs + group * height);
    }
  }
}
