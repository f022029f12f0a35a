import { attend, padFeatures } from "./attention.js";
import { addProduct, partOf } from "./numbers.js";
import { bytesOf, floatsOf, liveLayer } from "./scene.js";

/** @import { Features, LiveLayer } from "./attention.js" */
/** @import { Op, Padding, Scene, SceneNetwork } from "./scene.js" */

/** Operations between attention layers, each in float64 with float32 results. */

/**
 * Applies a function to every number.
 * @param {Features} features
 * @param {(x: number) => number} change
 * @returns {Features}
 */
export function changeEach(features, change) {
  return { ...features, data: features.data.map(change) };
}

/** GELU: x Φ(x), with Φ the distribution function of the normal distribution. @param {number} x @returns {number} */
export function gelu(x) {
  return (x * (1 + errorFunction(x * Math.SQRT1_2))) / 2;
}

/**
 * The error function, by its series 2/√π e^−x² Σ 2ⁿ x²ⁿ⁺¹ / (1·3·…·(2n + 1)), whose terms are all of one sign.
 * @param {number} x
 * @returns {number}
 */
function errorFunction(x) {
  if (Math.abs(x) > 6) return Math.sign(x);
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

/**
 * Multiplies each channel by a number and adds another.
 * @param {Features} features
 * @param {Float32Array} scale
 * @param {Float32Array} shift
 * @returns {Features}
 */
export function scaleChannels(features, scale, shift) {
  const { channels } = features;
  return { ...features, data: features.data.map((x, i) => x * scale[i % channels] + shift[i % channels]) };
}

/**
 * Gives the channels of each pixel mean zero and variance one, then scales and shifts them.
 * @param {Features} features
 * @param {Float32Array} scale
 * @param {Float32Array} shift
 * @param {number} eps  added to the variance
 * @returns {Features}
 */
export function normalisePixels(features, scale, shift, eps) {
  const { channels } = features;
  const data = new Float32Array(features.data.length);
  for (let start = 0; start < data.length; start += channels) {
    const pixel = features.data.subarray(start, start + channels);
    const mean = pixel.reduce((sum, x) => sum + x, 0) / channels;
    const variance = pixel.reduce((sum, x) => sum + (x - mean) ** 2, 0) / channels;
    const factor = 1 / Math.sqrt(variance + eps);
    for (let c = 0; c < channels; c++) data[start + c] = (pixel[c] - mean) * factor * scale[c] + shift[c];
  }
  return { ...features, data };
}

/** Adds two features of one size. @param {Features} one @param {Features} other @returns {Features} */
export function addFeatures(one, other) {
  return { ...one, data: one.data.map((x, i) => x + other.data[i]) };
}

/**
 * Takes the largest number of each square, and leaves out what fills no square.
 * @param {Features} features
 * @param {number} size
 * @returns {Features}
 */
export function largestOfSquares({ rows, cols, channels, data }, size) {
  const made = { rows: Math.floor(rows / size), cols: Math.floor(cols / size), channels };
  const largest = new Float32Array(made.rows * made.cols * channels).fill(-Infinity);
  for (let i = 0; i < made.rows * size; i++) {
    for (let j = 0; j < made.cols * size; j++) {
      const to = (Math.floor(i / size) * made.cols + Math.floor(j / size)) * channels;
      const from = (i * cols + j) * channels;
      for (let c = 0; c < channels; c++) largest[to + c] = Math.max(largest[to + c], data[from + c]);
    }
  }
  return { ...made, data: largest };
}

/**
 * Takes the largest number of each channel, or its mean.
 * @param {Features} features
 * @param {"max" | "mean"} what
 * @returns {Features}
 */
export function overPixels({ channels, data }, what) {
  const result = new Float64Array(channels).fill(what === "max" ? -Infinity : 0);
  for (let i = 0; i < data.length; i++) {
    const c = i % channels;
    result[c] = what === "max" ? Math.max(result[c], data[i]) : result[c] + data[i];
  }
  if (what === "mean") for (let c = 0; c < channels; c++) result[c] /= data.length / channels;
  return { rows: 1, cols: 1, channels, data: new Float32Array(result) };
}

/**
 * Maps the channels of each pixel.
 * @param {Features} features
 * @param {Float32Array} weight  (outputs, channels)
 * @param {Float32Array | null} bias
 * @returns {Features}
 */
export function mapPixels(features, weight, bias) {
  const { channels: inputs, rows, cols } = features;
  const outputs = weight.length / inputs;
  const sums = new Float64Array(rows * cols * outputs);
  for (let pixel = 0; pixel < rows * cols; pixel++) {
    if (bias) sums.set(bias, pixel * outputs);
    addProduct(weight, inputs, outputs, features.data, pixel * inputs, sums, pixel * outputs);
  }
  return { rows, cols, channels: outputs, data: new Float32Array(sums) };
}

/**
 * Convolves as `torch.nn.Conv2d` does.
 * @param {Features} features
 * @param {{data: Float32Array, shape: number[]}} weight  (outputs, inputs / groups, rows, cols)
 * @param {Float32Array | null} bias
 * @param {{stride: number[], dilation: number[], groups: number, padding: Padding}} options
 * @returns {Features}
 */
export function convolve(features, weight, bias, { stride, dilation, groups, padding }) {
  const keys = padFeatures(features, padding);
  const [outputs, width, down, across] = weight.shape;
  const size = (/** @type {number} */ n, /** @type {number} */ taps, /** @type {0 | 1} */ axis) =>
    Math.floor((n - dilation[axis] * (taps - 1) - 1) / stride[axis]) + 1;
  const [rows, cols] = [size(keys.rows, down, 0), size(keys.cols, across, 1)];
  const sums = new Float64Array(rows * cols * outputs);
  const taps = down * across;
  const [length, height] = [width * taps, outputs / groups];
  const patch = new Float32Array(keys.channels * taps); // (channels, taps), as the weight has them
  for (let i = 0, at = 0; i < rows; i++) {
    for (let j = 0; j < cols; j++, at += outputs) {
      for (let tap = 0; tap < taps; tap++) {
        const row = i * stride[0] + Math.floor(tap / across) * dilation[0];
        const from = (row * keys.cols + j * stride[1] + (tap % across) * dilation[1]) * keys.channels;
        for (let c = 0; c < keys.channels; c++) patch[c * taps + tap] = keys.data[from + c];
      }
      if (bias) sums.set(bias, at);
      for (let group = 0; group < groups; group++) {
        const matrix = partOf(weight.data, group, height * length);
        addProduct(matrix, length, height, patch, group * length, sums, at + group * height);
      }
    }
  }
  return { rows, cols, channels: outputs, data: new Float32Array(sums) };
}

/**
 * Runs a network whose attention depends on displacements alone, from a picture to class scores.
 * @typedef {object} LayerFeatures  of one attention layer
 * @property {Features} input
 * @property {Features} output
 * @property {number} at  number of its operation
 * @property {Features[]} kept  what the operations before have put aside
 * @typedef {{scores: Float32Array, layers: LayerFeatures[]}} NetworkResult
 * @typedef {object} RunOptions
 * @property {Map<number, LiveLayer>} [layers]  layers in place of the network's own, by number
 * @property {{result: NetworkResult, layer: number}} [from]  earlier result of this picture; goes on at that layer
 */

/**
 * Turns a picture into what a network takes.
 * @param {Uint8Array} picture  (rows, cols, 3)
 * @param {{rows: number, cols: number, mean: number[], std: number[]}} input
 * @returns {Features}
 */
export function normalisePicture(picture, { rows, cols, mean, std }) {
  const channels = mean.length;
  if (picture.length !== rows * cols * 3) throw new Error(`the picture must have ${rows} × ${cols} pixels`);
  const data = new Float32Array(rows * cols * channels);
  for (let i = 0; i < data.length; i++) {
    const c = i % channels;
    const byte = channels === 1 ? lightness(picture, 3 * i) : picture[Math.floor(i / channels) * 3 + c];
    data[i] = (byte / 255 - mean[c]) / std[c];
  }
  return { rows, cols, channels, data };
}

/**
 * Returns what a network of one channel sees of a pixel: its lightness (ITU-R 601), in bytes, as pillow rounds it.
 * @param {Uint8Array} picture
 * @param {number} at  where the pixel begins
 * @returns {number}
 */
export function lightness(picture, at) {
  return (19595 * picture[at] + 38470 * picture[at + 1] + 7471 * picture[at + 2] + 32768) >> 16;
}

/**
 * Runs a network.
 * @param {Scene} scene
 * @param {SceneNetwork} network
 * @param {Uint8Array} picture  (rows, cols, 3)
 * @param {RunOptions} [options]
 * @returns {NetworkResult}
 */
export function run(scene, network, picture, { layers, from } = {}) {
  const { program, input } = network;
  if (!program || !input) throw new Error(`${network.title} does not run in the page`);
  const start = from && from.result.layers[from.layer];
  let features = start ? start.input : normalisePicture(picture, input);
  const kept = start ? [...start.kept] : [];
  const found = from ? from.result.layers.slice(0, from.layer) : [];
  for (let at = start ? start.at : 0; at < program.length; at++) {
    const op = program[at];
    if (op.op === "attention") {
      const layer = layers?.get(op.layer) ?? liveLayer(scene, network.layers[op.layer]);
      const output = attend(features, layer);
      found[op.layer] = { input: features, output, at, kept: [...kept] };
      features = output;
    } else if (op.op === "keep") kept.push(features);
    else if (op.op === "add") features = addFeatures(features, /** @type {Features} */ (kept.pop()));
    else features = runOperation(scene, op, features);
  }
  return { scores: features.data, layers: found };
}

/**
 * Runs the network of a scene on one of its images.
 * @param {Scene} scene
 * @param {number} network
 * @param {number} image
 * @param {RunOptions} [options]
 * @returns {NetworkResult}
 */
export function runOnImage(scene, network, image, options) {
  return run(scene, scene.networks[network], bytesOf(scene.tensors, scene.images[image].picture), options);
}

/** @param {Scene} scene @param {Op} op @param {Features} features @returns {Features} */
function runOperation(scene, op, features) {
  const numbers = (/** @type {string} */ name) => floatsOf(scene.tensors, op[name]);
  const bias = op.bias ? numbers("bias") : null;
  switch (op.op) {
    case "convolve": {
      const weight = { data: numbers("weight"), shape: scene.tensors.get(op.weight)?.shape ?? [] };
      return convolve(features, weight, bias, /** @type {any} */ (op));
    }
    case "linear":
      return mapPixels(features, numbers("weight"), bias);
    case "scale":
      return scaleChannels(features, numbers("scale"), numbers("shift"));
    case "normalise":
      return normalisePixels(features, numbers("scale"), numbers("shift"), op.eps);
    case "gelu":
      return changeEach(features, gelu);
    case "maxpool":
      return largestOfSquares(features, op.size);
    case "max":
    case "mean":
      return overPixels(features, op.op);
    case "divide":
      return changeEach(features, (x) => x / op.by);
    default:
      throw new Error(`the page does not know the operation ${op.op}`);
  }
}
