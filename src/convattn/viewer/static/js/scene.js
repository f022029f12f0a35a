import { clamp } from "./clamp.js";
import { positionOf } from "./live.js";
import { floatsOf, readSafetensors } from "./safetensors.js";
import { sumOfAxes } from "./scores.js";

/**
 * What a page shows: images, networks, their layers. `docs/viewer.md` describes the format.
 *
 * A pair is (row, col). Positions are in pixels of the image as the network sees it; the centre of pixel (0, 0) is 0, 0.
 *
 * @typedef {import("./safetensors.js").Tensor} Tensor
 * @typedef {[number, number]} Pair
 *
 * @typedef {object} SceneImage
 * @property {string} name
 * @property {string | null} label
 * @property {string} picture  name of a tensor of bytes (rows, cols, 3): the image before normalisation
 * @property {string} [note]  what the picture does not show
 * @property {boolean} [own]  whether the reader added it, to this page alone
 *
 * @typedef {object} Lattice
 * @property {Pair} grid  rows and columns
 * @property {Pair} first  centre of (0, 0), in pixels of the image
 * @property {Pair} step  from one to the next, in pixels of the image
 *
 * @typedef {object} Statistic
 * @property {number | number[]} value
 * @property {number | number[] | null} error  standard error
 *
 * @typedef {object} PositionHeads
 * @property {string} encoding  "quadratic", "shift", …
 * @property {string | null} centres  (heads, 2), in key steps
 * @property {string | null} sharpness  (heads), α in 1 / key step²
 *
 * @typedef {object} PositionAttention  attention that depends on nothing but the displacement
 * @property {"position"} kind
 * @property {string} scores  (heads, rows, cols): from the lowest to the highest displacement along each axis; where a
 *   file has `axes` alone, their sum, which is computed when the scene is opened
 * @property {[string, string] | null} axes  (heads, rows), (heads, cols): scores whose sum over the axes is `scores`
 * @property {{first: Pair, stride: Pair}} queries  query (i, j) stands at key first + stride · (i, j)
 * @property {PositionHeads} heads
 * @property {string | null} values  W_h (heads, outputs, inputs / groups)
 * @property {string | null} bias  (outputs)
 * @property {Padding} padding  how the keys are made from the features
 * @property {number} groups
 *
 * @typedef {object} Padding
 * @property {[Pair, Pair]} pairs  pixels added (before, after) along each axis; negative ones are cut off
 * @property {"zeros" | "reflect" | "replicate" | "circular"} mode
 * @property {Pair} spread  step between the features' pixels among the keys; zeros between them
 *
 * @typedef {object} MapsAttention  attention that depends on the image: rows of weights
 * @property {"maps"} kind
 * @property {("both" | "position" | "content")[]} parts
 * @property {PositionAttention | null} position  of the part "position", which needs no maps
 * @property {string} queries  int32 (groups, queries): index on the grid, or −1 − n of prefix token n
 * @property {string} keys  int32 (groups, keys): index on keys.grid, or −1 − n of prefix token n
 * @property {string | null} allowed  bytes (groups, queries, keys): 0 where a mask excludes the pair
 * @property {boolean} signed  whether rows have a lowest weight other than zero
 * @property {boolean} stored  whether the file holds the rows; otherwise a server does
 * @property {(number | "mean")[]} images  of which there are rows
 *
 * @typedef {object} SceneLayer
 * @property {string} name
 * @property {string} kind
 * @property {string} pattern
 * @property {number} heads
 * @property {Pair} grid  of the queries
 * @property {boolean} normalised  whether rows sum to one
 * @property {{first: Pair, step: Pair}} place  of the queries
 * @property {Lattice} keys
 * @property {string[]} prefix  names of the tokens that have no place
 * @property {string | null} sentence
 * @property {Record<string, Statistic>[] | null} statistics  of each head
 * @property {PositionAttention | MapsAttention} attention
 *
 * @typedef {object} Timeline
 * @property {number[]} epochs
 * @property {string} centres  (moments, layers, heads, 2)
 * @property {string} sharpness  (moments, layers, heads)
 * @property {number[]} layers  numbers of the layers
 *
 * @typedef {{op: string} & Record<string, any>} Op
 *
 * @typedef {object} SceneNetwork
 * @property {string} name
 * @property {string} title
 * @property {string} note
 * @property {string[] | null} classes
 * @property {{rows: number, cols: number, mean: number[], std: number[]} | null} input
 * @property {Op[] | null} program
 * @property {SceneLayer[]} layers
 * @property {Timeline | null} timeline
 *
 * @typedef {object} Scene
 * @property {1} schema
 * @property {string} title
 * @property {SceneImage[]} images
 * @property {SceneNetwork[]} networks
 * @property {Map<string, Tensor>} tensors
 */

/** Version of the format that this page reads. */
const SCENE_SCHEMA = 1;

/**
 * Opens a scene.
 *
 * @param {ArrayBuffer} buffer  a safetensors file
 * @returns {Scene}
 */
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

/**
 * Adds up the scores of encodings of which the file has those of each axis.
 *
 * @param {Scene} scene
 */
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

/**
 * Returns rows and columns of a picture.
 *
 * @param {Scene} scene
 * @param {number} image
 * @returns {Pair}
 */
export function pictureShape({ images, tensors }, image) {
  const [rows, cols] = tensors.get(images[image].picture)?.shape ?? [1, 1];
  return [rows, cols];
}

/**
 * Returns the cell of a layer whose centre is nearest to a place.
 *
 * @param {Pick<SceneLayer, "place" | "grid">} layer
 * @param {Pair} pixel  in pixels of the image
 * @returns {Pair}
 */
export function nearestCell({ place: { first, step }, grid }, pixel) {
  return nearestInside([(pixel[0] - first[0]) / step[0], (pixel[1] - first[1]) / step[1]], grid);
}

/**
 * Returns the cell of a grid that is nearest to a place.
 *
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
 *
 * @param {{first: Pair, step: Pair}} place
 * @param {Pair} cell
 * @returns {Pair}
 */
export function cellCentre(place, cell) {
  return [place.first[0] + place.step[0] * cell[0], place.first[1] + place.step[1] * cell[1]];
}
