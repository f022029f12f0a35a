import { positionRows, storedRows } from "./rows.js";
import { openScene, pictureShape } from "./scene.js";
import { readPicture } from "./uploads.js";

/**
 * Where a page gets its rows from: the scene itself, a server, a notebook.
 *
 * @typedef {import("./scene.js").Scene} Scene
 * @typedef {import("./rows.js").LayerRows} LayerRows
 * @typedef {import("./rows.js").Query} Query
 * @typedef {import("./rows.js").Part} Part
 * @typedef {{network: number, image: number | "mean", query: Query, part: Part}} RowsAsked
 *
 * @typedef {object} Source
 * @property {Scene} scene
 * @property {(asked: RowsAsked) => Promise<LayerRows[]>} rows  of the layers that have this query and this image
 * @property {null | ((file: File) => Promise<number>)} upload  adds an image to the scene and returns its number
 */

/**
 * Opens a scene that holds everything.
 *
 * @param {ArrayBuffer} buffer
 * @returns {Source}
 */
export function staticSource(buffer) {
  const scene = openScene(buffer);
  const rows = async (/** @type {RowsAsked} */ asked) => rowsInPage(scene, asked);
  return { scene, rows, upload: takesPictures(scene) ? (file) => addPicture(scene, file) : null };
}

/**
 * Returns the rows that need nothing but the scene.
 *
 * @param {Scene} scene
 * @param {RowsAsked} asked
 * @returns {LayerRows[]}
 */
export function rowsInPage(scene, asked) {
  const layers = scene.networks[asked.network].layers;
  return layers.flatMap((layer, number) => {
    const live = layer.attention.kind === "position" || (asked.part === "position" && layer.attention.position);
    const found = live ? positionRows(scene, layer, number, asked.query) : storedRows(scene, asked, number);
    return found ? [found] : [];
  });
}

/**
 * Returns whether a network runs in the page on pictures of the scene's size: then another image changes something.
 *
 * @param {Scene} scene
 * @returns {boolean}
 */
function takesPictures(scene) {
  const [rows, cols] = pictureShape(scene, 0);
  return scene.networks.some(({ program, input }) => program && input?.rows === rows && input.cols === cols);
}

/**
 * @param {Scene} scene
 * @param {File} file
 * @returns {Promise<number>}
 */
async function addPicture(scene, file) {
  const shape = pictureShape(scene, 0);
  const data = await readPicture(file, ...shape);
  const name = `pictures/added/${scene.images.length}`;
  scene.tensors.set(name, { dtype: "U8", shape: [...shape, 3], data });
  return scene.images.push({ name: file.name, label: null, picture: name, own: true }) - 1;
}
