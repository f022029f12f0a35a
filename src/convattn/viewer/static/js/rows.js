import { positionRow } from "./attention.js";
import { partOf } from "./numbers.js";
import { bytesOf, floatsOf, geometryOf, integersOf, nearestCell, pictureShape, positionOf } from "./scene.js";

/** @import { MapsAttention, Pair, Scene, SceneLayer } from "./scene.js" */

/**
 * Rows of attention weights: of all heads of a layer, for one query.
 * @typedef {"both" | "position" | "content"} Part
 * @typedef {Pair | {prefix: number}} Query  in pixels of the image, or the number of a prefix token
 * @typedef {object} LayerRows
 * @property {number} layer
 * @property {Pair | {prefix: number}} query  cell of the layer's grid, or the number of a prefix token
 * @property {number} heads
 * @property {number} keyRows
 * @property {number} keyCols
 * @property {Float32Array} weights  (heads, key rows, key cols); NaN where the query cannot look
 * @property {Float32Array} prefix  (heads, prefix tokens)
 * @typedef {{group: number, place: number}} QueryPlace
 */

/**
 * Returns the rows of a layer that is computed from its scores; null if it has no such query.
 * @param {Scene} scene
 * @param {SceneLayer} layer
 * @param {number} number
 * @param {Query} query
 * @returns {LayerRows | null}
 */
export function positionRows(scene, layer, number, query) {
  const position = positionOf(layer);
  if (!position || "prefix" in query) return null;
  const cell = nearestCell(layer, query);
  const weights = positionRow(geometryOf(layer), floatsOf(scene.tensors, position.scores), layer.heads, cell);
  const [keyRows, keyCols] = layer.keys.grid;
  const prefix = new Float32Array(layer.heads * layer.prefix.length);
  return { layer: number, query: cell, heads: layer.heads, keyRows, keyCols, weights, prefix };
}

/**
 * Finds a query in the groups of a layer; null if it is in none.
 * @param {Scene} scene
 * @param {SceneLayer} layer
 * @param {Query} query
 * @returns {{place: QueryPlace, cell: Pair | {prefix: number}} | null}
 */
function findQuery(scene, layer, query) {
  const { attention } = layer;
  if (attention.kind !== "maps") return null;
  const cell = "prefix" in query ? query : nearestCell(layer, query);
  const index = "prefix" in cell ? -1 - cell.prefix : cell[0] * layer.grid[1] + cell[1];
  const at = integersOf(scene.tensors, attention.queries).indexOf(index);
  if (at < 0) return null;
  const size = scene.tensors.get(attention.queries)?.shape[1] ?? 1;
  return { place: { group: Math.floor(at / size), place: at % size }, cell };
}

/**
 * Spreads the weights of one query over the lattice of keys.
 * @param {Scene} scene
 * @param {SceneLayer} layer
 * @param {number} number
 * @param {{place: QueryPlace, cell: Pair | {prefix: number}}} found
 * @param {Float32Array} row  (heads, keys of the group)
 * @returns {LayerRows}
 */
function spreadRow(scene, layer, number, { place, cell }, row) {
  const attention = /** @type {MapsAttention} */ (layer.attention);
  const [keyRows, keyCols] = layer.keys.grid;
  const { heads } = layer;
  const count = scene.tensors.get(attention.keys)?.shape[1] ?? 0;
  const queries = scene.tensors.get(attention.queries)?.shape[1] ?? 0;
  const keys = partOf(integersOf(scene.tensors, attention.keys), place.group, count);
  const allowed = attention.allowed ? bytesOf(scene.tensors, attention.allowed) : null;
  const first = (place.group * queries + place.place) * count;
  const cells = keyRows * keyCols;
  const tokens = layer.prefix.length;
  const weights = new Float32Array(heads * cells).fill(NaN);
  const prefix = new Float32Array(heads * tokens);
  for (let k = 0; k < count; k++) {
    if (allowed && !allowed[first + k]) continue;
    const key = keys[k];
    for (let head = 0; head < heads; head++) {
      if (key >= 0) weights[head * cells + key] = row[head * count + k];
      else if (-1 - key < tokens) prefix[head * tokens - 1 - key] = row[head * count + k];
    }
  }
  return { layer: number, query: cell, heads, keyRows, keyCols, weights, prefix };
}

/**
 * Decodes levels of bytes: weight = low + level / 255 · scale.
 * @param {Uint8Array} levels  (heads, keys)
 * @param {Float32Array} scales  (heads)
 * @param {Float32Array | null} lows  (heads); null stands for zeros
 * @returns {Float32Array}
 */
function decodeLevels(levels, scales, lows) {
  const count = levels.length / scales.length;
  const weights = new Float32Array(levels.length);
  for (let head = 0, at = 0; head < scales.length; head++) {
    const [low, step] = [lows ? lows[head] : 0, scales[head] / 255];
    for (let k = 0; k < count; k++, at++) weights[at] = low + levels[at] * step;
  }
  return weights;
}

/**
 * Returns the rows of a layer whose maps are in the scene; null if it has none of this image or query.
 * @param {Scene} scene
 * @param {{network: number, image: number | "mean", query: Query, part: Part}} asked
 * @param {number} number  of the layer
 * @returns {LayerRows | null}
 */
function storedRows(scene, { network, image, query, part }, number) {
  const layer = scene.networks[network].layers[number];
  const { attention } = layer;
  const found = findQuery(scene, layer, query);
  if (!found || attention.kind !== "maps") return null;
  const name = `maps/${network}/${number}/${part}/${image}`;
  const shape = scene.tensors.get(`${name}/levels`)?.shape;
  if (!shape) return null;
  const [, heads, queries, keys] = shape;
  const { group, place } = found.place;
  const levels = new Uint8Array(heads * keys);
  const starts = Array.from({ length: heads }, (_, head) => (group * heads + head) * queries + place);
  const all = bytesOf(scene.tensors, `${name}/levels`);
  starts.forEach((start, head) => levels.set(partOf(all, start, keys), head * keys));
  const of = (/** @type {string} */ kind) => {
    const numbers = floatsOf(scene.tensors, `${name}/${kind}`);
    return Float32Array.from(starts, (start) => numbers[start]);
  };
  const row = decodeLevels(levels, of("scales"), attention.signed ? of("lows") : null);
  return spreadRow(scene, layer, number, found, row);
}

/** Tells whether a part of a layer's attention depends on displacements alone. @param {SceneLayer} layer @param {Part} part */
export const isPosition = ({ attention }, part) =>
  attention.kind === "position" ? part !== "content" : part === "position" && attention.position !== null;

/**
 * Returns the rows of the layers that have this query and this image.
 * @param {Scene} scene
 * @param {{network: number, image: number | "mean", query: Query, part: Part}} asked
 * @param {number} [only]  number of the one layer that is wanted
 * @returns {LayerRows[]}
 */
export function rowsOf(scene, asked, only) {
  return scene.networks[asked.network].layers.flatMap((layer, number) => {
    if (only !== undefined && only !== number) return [];
    const live = isPosition(layer, asked.part);
    const found = live ? positionRows(scene, layer, number, asked.query) : storedRows(scene, asked, number);
    return found ? [found] : [];
  });
}

/**
 * Returns whether a network runs in the page on pictures of the scene's size: then another image changes something.
 * @param {Scene} scene
 * @returns {boolean}
 */
export function takesPictures(scene) {
  const [rows, cols] = pictureShape(scene, 0);
  return scene.networks.some(({ program, input }) => program && input?.rows === rows && input.cols === cols);
}

/** Adds an own picture to the scene. @param {Scene} scene @param {File} file @returns {Promise<number>} its number */
export async function addPicture(scene, file) {
  const shape = pictureShape(scene, 0);
  const data = await readPicture(file, ...shape);
  const name = `pictures/added/${scene.images.length}`;
  scene.tensors.set(name, { dtype: "U8", shape: [...shape, 3], data });
  return scene.images.push({ name: file.name, label: null, picture: name, own: true }) - 1;
}

/** Largest file of a picture that a user may drop on the page. */
const LARGEST_FILE = 64 * 2 ** 20;

/**
 * Reads a picture as `convattn view --images` does: its largest part in the middle of the given shape, on white.
 * @param {File} file
 * @param {number} rows
 * @param {number} cols
 * @returns {Promise<Uint8Array>}  (rows, cols, 3)
 */
export async function readPicture(file, rows, cols) {
  if (file.size > LARGEST_FILE) throw new Error(`${file.name} is larger than ${LARGEST_FILE / 2 ** 20} MB`);
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is no picture that this browser can read`);
  }
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [cols, rows];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  if (!context) throw new Error("this browser cannot draw pictures");
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white"; // behind what is transparent
  context.fillRect(0, 0, cols, rows);
  const side = Math.min(bitmap.width / cols, bitmap.height / rows);
  const [width, height] = [cols * side, rows * side];
  context.drawImage(bitmap, (bitmap.width - width) / 2, (bitmap.height - height) / 2, width, height, 0, 0, cols, rows);
  bitmap.close();
  return new Uint8Array(context.getImageData(0, 0, cols, rows).data.filter((_, at) => at % 4 < 3));
}
