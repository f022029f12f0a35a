import { sumOfAxes } from "./attention.js";
import { clamp } from "./numbers.js";

/** @import { LayerGeometry, LiveLayer } from "./attention.js" */

/**
 * Reads the safetensors format: eight bytes with the length of a JSON header, the header, the numbers.
 * @typedef {Float32Array | Uint8Array | Int32Array} Numbers
 * @typedef {{dtype: string, shape: number[], data: Numbers}} Tensor
 * @typedef {{metadata: Record<string, string>, tensors: Map<string, Tensor>}} SafetensorsFile
 */

/** @param {string} text in base64 @returns {ArrayBuffer} its bytes, by a loop: `Uint8Array.from` takes 20 times as long */
export function decodeBase64(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes.buffer;
}

/** Names of the dtypes that scenes have, with what holds their numbers. */
const SAFETENSORS_TYPES = { F16: Uint16Array, F32: Float32Array, I32: Int32Array, U8: Uint8Array };

/**
 * Reads a file. Numbers of 16 bits become float32; the others are views of the buffer where it is aligned.
 * @param {ArrayBuffer} buffer
 * @returns {SafetensorsFile}
 */
export function readSafetensors(buffer) {
  const length = buffer.byteLength < 8 ? NaN : Number(new DataView(buffer).getBigUint64(0, true));
  if (!(length <= buffer.byteLength - 8)) throw new Error("the file is no safetensors file, or is cut off");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const start = 8 + length;
  /** @type {Map<string, Tensor>} */
  const tensors = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [from, to] = entry.data_offsets;
    if (start + to > buffer.byteLength) throw new Error(`the file is cut off: it does not hold ${name}`);
    const data = safetensorsNumbers(entry.dtype, buffer, start + from, to - from);
    const size = entry.shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1);
    if (data.length !== size) throw new Error(`the file is damaged: ${name} has ${data.length} numbers, not ${size}`);
    tensors.set(name, { dtype: entry.dtype, shape: entry.shape, data });
  }
  return { metadata: header.__metadata__ ?? {}, tensors };
}

/**
 * @param {string} dtype
 * @param {ArrayBuffer} buffer
 * @param {number} from
 * @param {number} bytes
 * @returns {Numbers}
 */
function safetensorsNumbers(dtype, buffer, from, bytes) {
  const type = SAFETENSORS_TYPES[/** @type {keyof typeof SAFETENSORS_TYPES} */ (dtype)];
  if (!type) throw new Error(`numbers of dtype ${dtype} cannot be read`);
  const width = type.BYTES_PER_ELEMENT;
  const aligned = from % width === 0;
  const whole = aligned ? buffer : buffer.slice(from, from + bytes);
  const numbers = new type(whole, aligned ? from : 0, Math.floor(bytes / width));
  return numbers instanceof Uint16Array ? halvesToFloats(numbers) : numbers;
}

/** Decodes numbers of 16 bits (IEEE 754 binary16). @param {Uint16Array} halves @returns {Float32Array} */
function halvesToFloats(halves) {
  const floats = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) {
    const half = halves[i];
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >> 10) & 31;
    const fraction = half & 1023;
    if (exponent === 31) floats[i] = fraction ? NaN : sign * Infinity;
    else if (exponent === 0) floats[i] = sign * fraction * 2 ** -24;
    else floats[i] = sign * (1024 + fraction) * 2 ** (exponent - 25);
  }
  return floats;
}

/**
 * Makes a function that returns the numbers of a tensor, which must be of one type, under its name.
 * @template {Numbers} T
 * @param {new (...given: any[]) => T} type
 * @param {string} kind  what such numbers are called in errors
 * @returns {(tensors: Map<string, Tensor>, name: string) => T}
 */
function numbersOf(type, kind) {
  return (tensors, name) => {
    const data = tensors.get(name)?.data;
    if (!(data instanceof type)) throw new Error(`the scene has no ${kind} ${name}`);
    return data;
  };
}

export const floatsOf = numbersOf(Float32Array, "numbers");
export const integersOf = numbersOf(Int32Array, "integers");
export const bytesOf = numbersOf(Uint8Array, "bytes");

/**
 * What a page shows: images, networks, their layers. `docs/reference/formats.md` describes the format and its fields.
 * Texts that name tensors stand for these; positions are (row, col) in pixels of the image as the network sees it.
 * @typedef {[number, number]} Pair
 * @typedef {{name: string, label: string | null, picture: string, note?: string, own?: boolean}} SceneImage  own: whether
 *   the reader added it, to this page alone
 * @typedef {number | null} Known  null where the number is not known
 * @typedef {{value: Known | Known[], error: Known | Known[]}} Statistic
 * @typedef {{pairs: [Pair, Pair], mode: "zeros" | "reflect" | "replicate" | "circular", spread: Pair}} Padding
 * @typedef {object} PositionAttention  attention that depends on nothing but the displacement
 * @property {"position"} kind
 * @property {string} scores  where a file has `axes` alone, their sum, which is computed when the scene is opened
 * @property {[string, string] | null} axes
 * @property {{first: Pair, stride: Pair}} queries
 * @property {{encoding: string, centres: string | null, sharpness: string | null}} heads
 * @property {string | null} values
 * @property {string | null} bias
 * @property {Padding} padding
 * @property {number} groups
 * @typedef {object} MapsAttention  attention that depends on the image: rows of weights
 * @property {"maps"} kind
 * @property {("both" | "position" | "content")[]} parts
 * @property {PositionAttention | null} position
 * @property {string} queries
 * @property {string} keys
 * @property {string | null} allowed
 * @property {boolean} signed
 * @property {(number | "mean")[]} images
 * @typedef {object} SceneLayer
 * @property {string} name
 * @property {number} number  of the layer in the report, or on the page
 * @property {string} kind
 * @property {string} pattern
 * @property {number} heads
 * @property {Pair} grid
 * @property {boolean} normalised
 * @property {{first: Pair, step: Pair}} place
 * @property {{grid: Pair, first: Pair, step: Pair}} keys
 * @property {string[]} prefix
 * @property {string | null} sentence
 * @property {Record<string, Statistic>[] | null} statistics
 * @property {number} measured_on  images of these statistics
 * @property {PositionAttention | MapsAttention} attention
 * @typedef {{epochs: number[], centres: string, sharpness: string, layers: number[]}} Timeline
 * @typedef {{op: string} & Record<string, any>} Op
 * @typedef {object} SceneNetwork
 * @property {string} name
 * @property {string} title
 * @property {string} note
 * @property {string[] | null} classes
 * @property {{rows: number, cols: number, mean: number[], std: number[]} | null} input
 * @property {Op[] | null} program
 * @property {SceneLayer[]} layers
 * @property {Timeline | null} timeline
 * @typedef {object} Scene
 * @property {1} schema
 * @property {string} title
 * @property {SceneImage[]} images
 * @property {SceneNetwork[]} networks
 * @property {Map<string, Tensor>} tensors
 */

/** Version of the format that this page reads. */
const SCENE_SCHEMA = 1;

/** Opens a scene. @param {ArrayBuffer} buffer a safetensors file @returns {Scene} */
export function openScene(buffer) {
  const { metadata, tensors } = readSafetensors(buffer);
  const text = metadata["convattn.scene"];
  if (text === undefined) throw new Error("the file holds no scene");
  const scene = JSON.parse(text);
  if (scene.schema !== SCENE_SCHEMA)
    throw new Error(`the scene is of version ${scene.schema}; this page reads ${SCENE_SCHEMA}`);
  const opened = { ...scene, tensors };
  addScores(opened);
  return opened;
}

/** Adds up the scores of encodings of which the file has those of each axis. @param {Scene} scene */
function addScores({ networks, tensors }) {
  for (const [network, { layers }] of networks.entries()) {
    for (const [number, layer] of layers.entries()) {
      const position = positionOf(layer);
      if (!position?.axes || position.scores) continue;
      const axes = position.axes.map((name) => floatsOf(tensors, name));
      const [heads, rows] = tensors.get(position.axes[0])?.shape ?? [0, 0];
      const data = sumOfAxes([axes[0], axes[1]], heads);
      position.scores = `computed/${network}/${number}/scores`;
      tensors.set(position.scores, { dtype: "F32", shape: [heads, rows, axes[1].length / heads], data });
    }
  }
}

/** Returns rows and columns of a picture. @param {Scene} scene @param {number} image @returns {Pair} */
export function pictureShape({ images, tensors }, image) {
  const [rows, cols] = tensors.get(images[image].picture)?.shape ?? [1, 1];
  return [rows, cols];
}

/**
 * Returns the cell of a layer whose centre is nearest to a place.
 * @param {Pick<SceneLayer, "place" | "grid">} layer
 * @param {Pair} pixel  in pixels of the image
 * @returns {Pair}
 */
export function nearestCell({ place: { first, step }, grid }, pixel) {
  return nearestInside([(pixel[0] - first[0]) / step[0], (pixel[1] - first[1]) / step[1]], grid);
}

/**
 * Returns the cell of a grid that is nearest to a place.
 * @param {Pair} place  in cells
 * @param {Pair} grid
 * @returns {Pair}
 */
export const nearestInside = ([row, col], [rows, cols]) => [
  clamp(Math.round(row), 0, rows - 1),
  clamp(Math.round(col), 0, cols - 1),
];

/**
 * Returns the centre of a cell, in pixels of the image.
 * @param {{first: Pair, step: Pair}} place
 * @param {Pair} cell
 * @returns {Pair}
 */
export function cellCentre(place, cell) {
  return [place.first[0] + place.step[0] * cell[0], place.first[1] + place.step[1] * cell[1]];
}

/** Layers of a scene whose attention depends on displacements alone, ready to be computed. */

/**
 * Returns the part of a layer's attention that depends on displacements alone, if there is one.
 * @param {SceneLayer} layer
 * @returns {PositionAttention | null}
 */
export function positionOf({ attention }) {
  return attention.kind === "position" ? attention : attention.position;
}

/** Returns where the queries of a layer stand among its keys. @param {SceneLayer} layer @returns {LayerGeometry} */
export function geometryOf(layer) {
  const position = positionOf(layer);
  if (!position) throw new Error(`${layer.name} has no scores of displacements`);
  return { keys: layer.keys.grid, grid: layer.grid, first: position.queries.first, stride: position.queries.stride };
}

/**
 * Returns a layer with its numbers, for `attend`.
 * @param {Scene} scene
 * @param {SceneLayer} layer
 * @returns {LiveLayer}
 */
export function liveLayer(scene, layer) {
  const position = positionOf(layer);
  const values = position?.values && scene.tensors.get(position.values);
  if (!position || !values) throw new Error(`${layer.name} cannot be computed in the page`);
  const [heads, outputs, width] = values.shape;
  const numbers = (/** @type {string} */ name) => floatsOf(scene.tensors, name);
  return {
    heads,
    geometry: geometryOf(layer),
    scores: numbers(position.scores),
    axes: position.axes && [numbers(position.axes[0]), numbers(position.axes[1])],
    values: numbers(position.values ?? ""),
    outputs,
    inputs: width * position.groups,
    groups: position.groups,
    bias: position.bias ? numbers(position.bias) : null,
    padding: position.padding,
  };
}
