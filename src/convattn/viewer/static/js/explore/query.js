// The image and its query: dragged, or moved by the arrow keys from cell to cell of the chosen layer.

import { clamp } from "../clamp.js";
import { div, h, keepChildren, say, setProp, setProps } from "../dom.js";
import { drawPicture } from "../draw.js";
import { keyTarget } from "../keys.js";
import { cellCentre, nearestCell, nearestInside, pictureShape } from "../scene.js";
import { cellExtent, createField, extentOf, onDrag } from "./field.js";
import { queryWords } from "./words.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("../scene.js").Pair} Pair */

/**
 * Returns rows and columns of the picture that is shown.
 * @param {Model} model
 * @returns {Pair}
 */
export function pictureSize({ scene, state }) {
  return pictureShape(scene, state.get().image);
}

/**
 * Returns the edges of the picture that is shown.
 * @param {Model} model
 * @returns {import("./field.js").Extent}
 */
export const pictureExtent = (model) => extentOf({ first: [0, 0], step: [1, 1] }, pictureSize(model));

/** What was drawn last. @type {WeakMap<HTMLCanvasElement, import("../scene.js").Tensor>} */
const drawnImages = new WeakMap();

/**
 * Draws the picture of the state's image, unless it is there already.
 * @param {Model} model
 * @param {HTMLCanvasElement} canvas
 * @param {number} [image]
 */
export function drawImage({ scene, state }, canvas, image = state.get().image) {
  const tensor = scene.tensors.get(scene.images[image].picture);
  if (!tensor || drawnImages.get(canvas) === tensor) return;
  drawnImages.set(canvas, tensor);
  drawPicture(canvas, /** @type {Uint8Array} */ (tensor.data), tensor.shape[0], tensor.shape[1]);
}

/**
 * Puts the query on a pixel: the nearest within the image.
 * @param {Model} model
 * @param {Pair} pixel
 */
function setQuery(model, [row, col]) {
  const [rows, cols] = pictureSize(model);
  // A centre between two pixels goes to the lower one, whose nearest cell it is: `nearestCell` rounds up.
  const inside = (/** @type {number} */ place, /** @type {number} */ size) =>
    clamp(Math.ceil(place - 0.5), 0, size - 1);
  model.state.set({ query: [inside(row, rows), inside(col, cols)], prefix: null });
}

/**
 * Lets keys and pointer move the query over an element.
 * @param {Model} model
 * @param {import("./field.js").Field} field
 * @param {string} name what it is
 */
export function steerQuery(model, field, name) {
  setProps(field.element, { role: "application", "aria-roledescription": name, tabindex: 0 });
  onDrag(field.element, (event) => setQuery(model, field.pixelAt(event)));
  field.element.addEventListener("keydown", (event) => {
    const layer = model.layer();
    const next = keyTarget(event, nearestCell(layer, model.state.get().query), event.shiftKey ? 4 : 1);
    if (next) setQuery(model, cellCentre(layer.place, nearestInside(next, layer.grid)));
  });
}

/**
 * @param {Model} model
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createQueryPicture(model) {
  const { scene, state } = model;
  const canvas = h("canvas");
  const field = createField([canvas]);
  const { element } = field;
  element.dataset.testid = "picture";
  steerQuery(model, field, "query pixel");

  const place = h("output", { class: "query-place", "data-testid": "query" });
  const prefixes = h("div", { class: "choices", role: "group", "aria-label": "Query" });
  let drawn = -1;

  function showPrefixes() {
    const names = model.layer().prefix;
    prefixes.hidden = !names.length;
    const { prefix } = state.get();
    keepChildren(prefixes, names.length + 1, (at) =>
      h("button", { class: "choice", onclick: () => state.set({ prefix: at ? at - 1 : null }) }),
    ).forEach((button, at) => {
      setProp(button, "aria-pressed", prefix === (at ? at - 1 : null));
      say(button, at ? `${names[at - 1]} token` : "pixel");
    });
  }

  function update() {
    const { image, query, prefix, average } = state.get();
    element.classList.toggle("faint", average);
    if (drawn !== image) {
      const extent = pictureExtent(model);
      field.setExtent(extent);
      field.place(canvas, extent);
      field.showImageEdge(extent, false);
      drawImage(model, canvas);
      drawn = image;
    }
    const layer = model.layer();
    field.showQuery(prefix === null ? cellExtent(layer, nearestCell(layer, query)) : null);
    const words = queryWords(state.get(), layer.prefix);
    setProp(element, "aria-label", `${scene.images[image].name}. Query: ${words}. Arrow keys move it.`);
    [place.dataset.row, place.dataset.col] = query.map(String);
    say(place, `Query: ${words}`);
    showPrefixes();
  }

  return { element: div("query", element, div("query-line", place, prefixes)), update };
}
