// The table of displacements, (2H − 1) × (2W − 1), and the window of it that the query sees: the table stays, the window
// slides.

import { positionScores, tableShape } from "../attention.js";
import { h, para, say, section, setProp, setProps } from "../dom.js";
import { OVERLAY, drawMap } from "../draw.js";
import { createColourBar } from "./choices.js";
import { createField, doubleMark, drawImage, extentOf, pictureSize, rectangle } from "./field.js";
import { clamp, partOf } from "../numbers.js";
import { isPosition } from "../rows.js";
import { cellCentre, geometryOf, nearestCell } from "../scene.js";
import { displacements, finiteLimits } from "../statistics.js";

/** @import { Model } from "./model.js" */
/** @import { Pair } from "../scene.js" */

/** @param {Model} model @returns {{element: HTMLElement, update: () => void}} */
export function createDisplacementTable(model) {
  const { state } = model;
  const canvas = h("canvas");
  const picture = h("canvas", { class: "window-picture" });
  const field = createField([canvas, picture]);
  const windowMarks = doubleMark("window-mark");
  field.marks.append(...windowMarks);
  const bar = createColourBar(model, OVERLAY);
  const caption = para("caption");
  const size = h("span", { class: "table-size" });
  const element = section(
    "displacements",
    "Table of displacements",
    h("h2", null, "Table of displacements ", size),
    field.element,
    bar.element,
    caption,
  );
  field.element.setAttribute("role", "img");

  /** @returns {{table: Float32Array, grid: Pair, lowest: Pair, fixed: boolean} | null} displacements in key steps */
  function tableNow() {
    const { layer: number, head, part } = state.get();
    const layer = model.layer();
    const scores = model.table(number);
    const shown = model.shown(number);
    if (!shown || "prefix" in shown.rows.query) return null;
    const map = model.map(number, head);
    if (scores && isPosition(layer, part)) {
      const { lowest, size: grid } = tableShape(geometryOf(layer));
      const seen = positionScores(geometryOf(layer), scores, layer.heads, shown.rows.query);
      const [, best] = finiteLimits(partOf(seen, head, map.length));
      const table = asInMap(partOf(scores, head, grid[0] * grid[1]), best, finiteLimits(map)[1]);
      return { table, grid, lowest, fixed: true };
    }
    // The one row that is known lies in its window.
    const { keyRows, keyCols, query } = shown.rows;
    const [top, left] = displacements(layer, query).map((along) => clamp(Math.round(along[0]), 1 - along.length, 0));
    const [rows, cols] = [2 * keyRows - 1, 2 * keyCols - 1];
    const table = new Float32Array(rows * cols).fill(NaN);
    for (let row = 0; row < keyRows; row++) {
      const start = (top + keyRows - 1 + row) * cols + left + keyCols - 1;
      table.set(partOf(map, row, keyCols), start);
    }
    return { table, grid: [rows, cols], lowest: [1 - keyRows, 1 - keyCols], fixed: false };
  }

  /**
   * @param {Float32Array} scores
   * @param {number} best  the largest score that the query sees
   * @param {number} most  what the map has there
   * @returns {Float32Array} what the map has at keys of these scores, or would have
   */
  function asInMap(scores, best, most) {
    if (state.get().values === "scores") return scores.map((score) => score - best + most);
    return scores.map((score) => most * Math.exp(score - best));
  }

  return {
    element,
    update() {
      const layer = model.layer();
      const { query, prefix, average, layer: number, head, values } = state.get();
      const made = prefix === null ? tableNow() : null;
      element.hidden = !made;
      if (!made) return;
      const { table, grid, lowest, fixed } = made;
      const [rows, cols] = grid;
      const [low, high] = model.limits(number, head);
      const { step } = layer.keys;
      const extent = extentOf({ first: [lowest[0] * step[0], lowest[1] * step[1]], step }, grid);
      field.setExtent(extent);
      field.place(canvas, extent);
      drawMap(canvas, table, { rows, cols, low, high, colours: OVERLAY });
      bar.update();
      drawImage(model, picture);
      picture.hidden = average;
      // Displacements are measured from the query: the image lies in the table with its query on displacement 0.
      const [row, col] = cellCentre(layer.place, nearestCell(layer, query));
      const frame = extentOf({ first: [-row, -col], step: [1, 1] }, pictureSize(model));
      const keys = extentOf(layer.keys, layer.keys.grid);
      const seen = { top: keys.top - row, bottom: keys.bottom - row, left: keys.left - col, right: keys.right - col };
      field.place(picture, frame);
      field.showImageEdge(seen, false);
      for (const mark of windowMarks) setProps(mark, rectangle(seen));
      field.showQuery(extentOf({ first: [0, 0], step }, [1, 1]));
      say(size, `${rows} × ${cols}`);
      setProp(
        field.element,
        "aria-label",
        `${values === "weights" ? "Weights" : "Scores"} of ${rows} by ${cols} displacements; the window that the query sees is outlined.`,
      );
      const window = layer.keys.grid.join(" × ");
      const which = fixed
        ? `A query sees a window of ${window}, the frame with the image in it. Move the query down and the frame moves up; the scores stay. Beyond the frame stands what keys there would have.`
        : `With content every query has a table of its own, of which only its window of ${window} is known: move the query, and the frame slides and is filled anew.`;
      say(
        caption,
        `Colours are those of the map, by displacement (key minus query): the middle is the query, wherever that is. ${which}`,
      );
    },
  };
}
