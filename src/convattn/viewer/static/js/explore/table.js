// The table of displacements, (2H − 1) × (2W − 1), and the window of it that the query sees: the table stays, the window
// slides.

import { h, say, setProp, svg } from "../dom.js";
import { drawMap } from "../draw.js";
import { geometryOf } from "../live.js";
import { nearestCell } from "../scene.js";
import { tableShape } from "../scores.js";
import { largestFinite } from "../statistics.js";
import { createField, extentOf, rectangle } from "./field.js";
import { drawImage, pictureSize, setQuery } from "./query.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("../scene.js").Pair} Pair */
/** @typedef {import("./field.js").Extent} Extent */

/** Lowest score that is told apart, below the largest of the table. */
const FLOOR = -10;

/**
 * @param {Model} model
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createDisplacementTable(model) {
  const { state } = model;
  const canvas = h("canvas", { class: "pixels" });
  const picture = h("canvas", { class: "pixels window-picture" });
  const field = createField([canvas, picture]);
  const [windowBack, window_] = ["window-mark window-mark-back", "window-mark"].map((name) =>
    svg("rect", { class: name }),
  );
  field.marks.append(windowBack, window_);
  const caption = h("p", { class: "caption" });
  const size = h("span", { class: "table-size" });
  const element = h(
    "section",
    { class: "displacements", "aria-label": "Table of displacements" },
    h("h3", null, "Table of displacements ", size),
    field.element,
    caption,
  );
  field.element.setAttribute("role", "img");
  let drawnImage = -1;

  field.element.addEventListener("click", (event) => {
    const [down, right] = field.pixelAt(/** @type {PointerEvent} */ (event));
    // A press takes the query to where the window's middle is under the pointer.
    const [rows, cols] = pictureSize(model);
    setQuery(model, [(rows - 1) / 2 - down, (cols - 1) / 2 - right]);
  });

  /** @returns {{table: Float32Array, rows: number, cols: number, low: number, high: number, extent: Extent} | null} */
  function tableNow() {
    const { layer: number, head } = state.get();
    const layer = model.layer();
    const scores = model.table(number);
    const live = scores && (layer.attention.kind === "position" || state.get().part === "position");
    if (live) {
      const { lowest, size: cells } = tableShape(geometryOf(layer));
      const count = cells[0] * cells[1];
      const table = scores.subarray(head * count, (head + 1) * count);
      const high = largestFinite(table);
      const first = /** @type {Pair} */ (lowest.map((cell, axis) => cell * layer.keys.step[axis]));
      const extent = extentOf({ first, step: layer.keys.step }, cells);
      return { table, rows: cells[0], cols: cells[1], low: high + FLOOR, high, extent };
    }
    return rowAsTable(number, head);
  }

  /** @param {number} number @param {number} head */
  function rowAsTable(number, head) {
    const shown = model.shown(number);
    if (!shown || "prefix" in shown.rows.query) return null;
    const layer = model.layer();
    const { keyRows, keyCols, query } = shown.rows;
    const [rows, cols] = [2 * keyRows - 1, 2 * keyCols - 1];
    const table = new Float32Array(rows * cols).fill(NaN);
    const map = model.map(number, head);
    for (let row = 0; row < keyRows; row++) {
      const start = (row + keyRows - 1 - query[0]) * cols + keyCols - 1 - query[1];
      table.set(map.subarray(row * keyCols, (row + 1) * keyCols), start);
    }
    const [low, high] = model.limits(number, head);
    const first = /** @type {Pair} */ ([-(keyRows - 1) * layer.keys.step[0], -(keyCols - 1) * layer.keys.step[1]]);
    return { table, rows, cols, low, high, extent: extentOf({ first, step: layer.keys.step }, [rows, cols]) };
  }

  return {
    element,
    update() {
      const layer = model.layer();
      const { query, prefix, image, average } = state.get();
      const made = prefix === null ? tableNow() : null;
      element.hidden = !made;
      if (!made) return;
      const { table, rows, cols, low, high, extent } = made;
      field.setExtent(extent);
      field.place(canvas, extent);
      drawMap(canvas, table, { rows, cols, low, high, theme: model.theme() });
      if (drawnImage !== image) drawImage(model, picture);
      drawnImage = image;
      picture.hidden = average;
      // Displacements are measured from the query: the image lies in the table with its query on displacement 0.
      const cell = nearestCell(layer.place, layer.grid, query);
      const centre = cell.map((at, axis) => layer.place.first[axis] + layer.place.step[axis] * at);
      const [height, width] = pictureSize(model);
      const frame = extentOf({ first: [-centre[0], -centre[1]], step: [1, 1] }, [height, width]);
      const keys = extentOf(layer.keys, layer.keys.grid);
      const seen = {
        top: keys.top - centre[0],
        bottom: keys.bottom - centre[0],
        left: keys.left - centre[1],
        right: keys.right - centre[1],
      };
      field.place(picture, frame);
      field.showImageEdge(seen, false);
      for (const [name, value] of Object.entries(rectangle(seen))) {
        setProp(window_, name, value);
        setProp(windowBack, name, value);
      }
      const [down, across] = layer.keys.step.map((step) => step / 2);
      field.showQuery({ top: -down, bottom: down, left: -across, right: across });
      const positional = layer.attention.kind === "position";
      say(size, `${rows} × ${cols}`);
      field.element.setAttribute(
        "aria-label",
        `Scores of ${rows} by ${cols} displacements; the window that the query sees is outlined.`,
      );
      say(caption, positional ? captionOfTable(layer.keys.grid) : captionOfRow(layer.keys.grid));
    },
  };
}

/** @param {Pair} keys @returns {string} */
function captionOfTable([rows, cols]) {
  return (
    "This table is indexed by displacement, key minus query, not by position: its middle is the query itself, wherever that is. " +
    `A query sees a window of ${rows} × ${cols}, the frame with the image in it. Move the query down and the frame moves up; the table never changes.`
  );
}

/** @param {Pair} keys @returns {string} */
function captionOfRow([rows, cols]) {
  return (
    "This table is indexed by displacement, key minus query, not by position: its middle is the query itself. " +
    `With content every query has a table of its own, of which only its window of ${rows} × ${cols} is known: move the query, and the frame slides and is filled anew.`
  );
}
