import { attend } from "./attention.js";
import { liveLayer } from "./live.js";
import {
  addFeatures,
  changeEach,
  convolve,
  gelu,
  largestOfSquares,
  mapPixels,
  normalisePixels,
  overPixels,
  scaleChannels,
} from "./operations.js";
import { bytesOf, floatsOf } from "./safetensors.js";

/**
 * Runs a network whose attention depends on displacements alone, from a picture to class scores.
 *
 * @typedef {import("./attention.js").Features} Features
 * @typedef {import("./attention.js").LiveLayer} LiveLayer
 * @typedef {import("./scene.js").Op} Op
 * @typedef {import("./scene.js").Scene} Scene
 * @typedef {import("./scene.js").SceneNetwork} SceneNetwork
 *
 * @typedef {object} LayerFeatures  of one attention layer
 * @property {Features} input
 * @property {Features} output
 * @property {number} at  number of its operation
 * @property {Features[]} kept  what the operations before have put aside
 *
 * @typedef {{scores: Float32Array, layers: LayerFeatures[]}} NetworkResult
 *
 * @typedef {object} RunOptions
 * @property {Map<number, LiveLayer>} [layers]  layers in place of the network's own, by number
 * @property {{result: NetworkResult, layer: number}} [from]  earlier result of this picture; goes on at that layer
 */

/**
 * Turns a picture into what a network takes.
 *
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
 *
 * @param {Uint8Array} picture
 * @param {number} at  where the pixel begins
 * @returns {number}
 */
export function lightness(picture, at) {
  return (19595 * picture[at] + 38470 * picture[at + 1] + 7471 * picture[at + 2] + 32768) >> 16;
}

/**
 * Runs a network.
 *
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
 *
 * @param {Scene} scene
 * @param {number} network
 * @param {number} image
 * @param {RunOptions} [options]
 * @returns {NetworkResult}
 */
export function runOnImage(scene, network, image, options) {
  return run(scene, scene.networks[network], bytesOf(scene.tensors, scene.images[image].picture), options);
}

/**
 * @param {Scene} scene
 * @param {Op} op
 * @param {Features} features
 * @returns {Features}
 */
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
