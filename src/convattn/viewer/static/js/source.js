import { positionRows, storedRows } from "./rows.js";
import { openScene } from "./scene.js";
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
  const input = pictureInput(scene);
  return { scene, rows, upload: input ? (file) => addPicture(scene, input, file) : null };
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
 * Returns what a network that runs in the page takes: if there is one, another image changes something.
 *
 * @param {Scene} scene
 */
function pictureInput({ networks }) {
  return networks.find((network) => network.program && network.input)?.input;
}

/**
 * @param {Scene} scene
 * @param {{rows: number, cols: number}} input
 * @param {File} file
 * @returns {Promise<number>}
 */
async function addPicture(scene, input, file) {
  const picture = await readPicture(file, input.rows, input.cols);
  const name = `pictures/added/${scene.images.length}`;
  scene.tensors.set(name, { dtype: "U8", shape: [input.rows, input.cols, 3], data: picture });
  return scene.images.push({ name: file.name, label: null, picture: name }) - 1;
}
