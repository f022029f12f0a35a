// What a small map shows: all keys, or those near the query, so that heads that look a pixel away can be told apart.

import { setProp } from "../dom.js";
import { drawMap } from "../draw.js";
import { cellExtent, cssShare, extentOf } from "./field.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./field.js").Extent} Extent */

/** Keys on each side of the query that are near. */
const NEAR = 4;

/**
 * @typedef {object} SmallView
 * @property {number} rows
 * @property {number} cols
 * @property {Extent} extent   edges, in pixels of the image
 * @property {boolean} whole   whether it is all keys
 * @property {Extent | null} query   edges of its cell; null for a query without a place
 * @property {(values: Float32Array) => Float32Array} cut   takes the shown part of a map
 */

/**
 * Returns what the small maps of a layer show; null while there are no rows.
 * @param {Model} model
 * @param {number} number of the layer
 * @param {number} [network]
 * @returns {SmallView | null}
 */
export function smallView(model, number, network = model.state.get().network) {
  const shown = model.shown(number, network);
  if (!shown) return null;
  const layer = model.scene.networks[network].layers[number];
  const { query, keyRows, keyCols } = shown.rows;
  const extent = extentOf(layer.keys, layer.keys.grid);
  const cell = "prefix" in query ? null : cellExtent(layer, query);
  if (!cell || model.state.get().extent === "whole") {
    return { rows: keyRows, cols: keyCols, extent, whole: true, query: cell, cut: (values) => values };
  }
  const { first, step } = layer.keys;
  const row = Math.round(((cell.top + cell.bottom) / 2 - first[0]) / step[0]) - NEAR;
  const col = Math.round(((cell.left + cell.right) / 2 - first[1]) / step[1]) - NEAR;
  const size = 2 * NEAR + 1;
  return {
    rows: size,
    cols: size,
    extent: extentOf({ first: [first[0] + step[0] * row, first[1] + step[1] * col], step }, [size, size]),
    whole: false,
    query: cell,
    cut(values) {
      const made = new Float32Array(size * size).fill(NaN);
      for (let at = Math.max(0, -row); at < Math.min(size, keyRows - row); at++) {
        const from = Math.max(0, -col);
        const to = Math.min(size, keyCols - col);
        const start = (row + at) * keyCols + col;
        if (to > from) made.set(values.subarray(start + from, start + to), at * size + from);
      }
      return made;
    },
  };
}

/**
 * Draws what a view shows of a head; all of its map if there is none.
 * @param {Model} model
 * @param {HTMLCanvasElement} canvas
 * @param {number} number of the layer
 * @param {number} head
 * @param {SmallView | null} [view]
 * @param {number} [network]
 * @returns {boolean} whether it changed
 */
export function paintMap(model, canvas, number, head, view, network = model.state.get().network) {
  const [low, high] = model.limits(number, head, network);
  const map = model.map(number, head, network);
  const [rows, cols] = view ? [view.rows, view.cols] : model.scene.networks[network].layers[number].keys.grid;
  return drawMap(canvas, view ? view.cut(map) : map, { rows, cols, low, high, theme: model.theme() });
}

/**
 * Tells the style sheet where the query is in small maps, and where the image ends if there is padding around it.
 * @param {HTMLElement} element that holds the maps
 * @param {SmallView} view
 * @param {import("../scene.js").Pair} image rows and columns
 */
export function placeMarks(element, { extent, query, whole }, image) {
  const { top, left, bottom, right } = extent;
  const across = (/** @type {number} */ length) => cssShare(length / (right - left));
  const down = (/** @type {number} */ length) => cssShare(length / (bottom - top));
  const padded = whole && (top < -0.6 || left < -0.6);
  const edges = [down(-0.5 - top), across(right - image[1] + 0.5), down(bottom - image[0] + 0.5), across(-0.5 - left)];
  element.classList.toggle("placeless", !query);
  element.classList.toggle("padded", padded);
  setProp(element, "style", {
    "--shape": `${right - left} / ${bottom - top}`,
    "--query-top": query ? down((query.top + query.bottom) / 2 - top) : "0%",
    "--query-left": query ? across((query.left + query.right) / 2 - left) : "0%",
    "--inside": padded ? edges.join(" ") : "0",
  });
}
