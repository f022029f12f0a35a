// Every head of every layer as a small map: of all keys, or of those near the query, so that heads that look a pixel away
// can be told apart.

import { div, h, keyTarget, setProp, setProps } from "../dom.js";
import { contextOf, drawBars, drawMap } from "../draw.js";
import { cellExtent, cssShare, extentOf, pictureSize, reachesBeyond } from "./field.js";
import { headSentence } from "./words.js";
import { clamp, partOf } from "../numbers.js";
import { rowNumbers } from "../statistics.js";

/** @import { Child } from "../dom.js" */
/** @import { Extent } from "./field.js" */
/** @import { Model } from "./model.js" */
/** @import { Pair, SceneLayer } from "../scene.js" */

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
  return drawMap(canvas, view ? view.cut(map) : map, { rows, cols, low, high });
}

/**
 * Tells the style sheet where the query is in small maps, and where the image ends if there is padding around it.
 * @param {HTMLElement} element that holds the maps
 * @param {SmallView} view
 * @param {Pair} image rows and columns
 */
export function placeMarks(element, { extent, query, whole }, image) {
  const { top, left, bottom, right } = extent;
  const across = (/** @type {number} */ length) => cssShare(length / (right - left));
  const down = (/** @type {number} */ length) => cssShare(length / (bottom - top));
  const padded = whole && reachesBeyond(extent, extentOf({ first: [0, 0], step: [1, 1] }, image));
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

/** @typedef {{button: HTMLButtonElement, map: HTMLCanvasElement, bars: HTMLCanvasElement}} MapCell */
/**
 * @typedef {object} MapRow
 * @property {HTMLElement} row
 * @property {HTMLCanvasElement} canvas  below the buttons, with the maps of all of them: browsers are slow at many canvases
 * @property {number} pixel      pixels of the canvas for one of the page
 * @property {MapCell[]} cells   their canvases are not on the page
 * @property {SceneLayer} scene
 * @property {number} shape      width of a map over its height
 */

/** Pixels between maps, as in the style sheet, and those of a bar of a prefix token. */
const MAP_GAP = 6;
const BAR_WIDTH = 3;

/** @param {string} kind @param {...Child} children */
const matrixRow = (kind, ...children) => h("div", { class: kind, role: "row" }, ...children);

/** Time after the last change at which the texts for screen readers follow, in ms: maps come first. */
const TEXT_DELAY = 250;

/**
 * @param {Model} model
 * @param {() => void} opened called when a head was chosen by pointer or Enter
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createMatrix(model, opened) {
  const { state } = model;
  const body = h("div", {
    class: "matrix",
    role: "grid",
    "aria-label": "Attention maps: a row for each layer, a column for each head",
  });
  const element = div("matrix-scroll", body);
  /** @type {MapRow[]} */
  let rows = [];
  let built = -1;
  let texts = 0;
  const resized = new ResizeObserver((entries) => {
    for (const { target, contentRect: box } of entries) {
      const [width, height] = [box.width, box.height].map((size) => Math.round(size * devicePixelRatio));
      setProps(target, { width, height });
      const row = /** @type {MapRow} */ (rows.find(({ canvas }) => canvas === target));
      row.pixel = width / box.width;
      if (width) compose(row, row.cells.keys());
    }
  });

  /** @param {number} layer @param {number} head */
  function select(layer, head) {
    const at = clamp(layer, 0, rows.length - 1);
    state.set({ layer: at, head: clamp(head, 0, rows[at].cells.length - 1) });
  }

  function build() {
    const { layers } = model.network();
    built = state.get().network;
    const most = Math.max(...layers.map(({ heads }) => heads));
    body.style.setProperty("--heads", String(most));
    body.style.setProperty("--layers", String(layers.length));
    const numbers = Array.from({ length: most }, (_, head) =>
      h("span", { role: "columnheader", "aria-label": `Head ${head + 1}` }, head + 1),
    );
    const head = matrixRow("matrix-head", h("span", { class: "corner", role: "columnheader" }, "Layer"), ...numbers);
    rows = layers.map((layer, number) => buildRow(layer, number));
    body.replaceChildren(head, ...rows.map(({ row }) => row));
    resized.disconnect();
    for (const { canvas } of rows) resized.observe(canvas);
  }

  /** Puts maps of a row on its canvas. @param {MapRow} row @param {Iterable<number>} heads */
  function compose({ canvas, pixel, cells, scene, shape }, heads) {
    const most = Number(body.style.getPropertyValue("--heads"));
    const step = (canvas.width + MAP_GAP * pixel) / most;
    const bars = scene.prefix.length && BAR_WIDTH * scene.prefix.length * pixel;
    const width = step - MAP_GAP * pixel - (bars && bars + 2 * pixel);
    const top = Math.round((canvas.height - width / shape) / 2);
    const context = contextOf(canvas);
    context.imageSmoothingEnabled = false;
    const put = (/** @type {HTMLCanvasElement} */ map, /** @type {number} */ left, /** @type {number} */ wide) => {
      const from = Math.round(left);
      context.drawImage(map, from, top, Math.round(left + wide) - from, canvas.height - 2 * top);
    };
    for (const head of heads) {
      put(cells[head].map, head * step, width);
      if (bars) put(cells[head].bars, head * step + width + 2 * pixel, bars);
    }
  }

  /** @param {SceneLayer} layer @param {number} number @returns {MapRow} */
  function buildRow(layer, number) {
    const cells = Array.from({ length: layer.heads }, (_, head) => {
      const props = {
        class: "map",
        "data-layer": number,
        "data-head": head,
        "aria-label": `Head ${head + 1} of layer ${number + 1}`,
        tabindex: -1,
      };
      const button = h("button", props, h("span", { class: "frame" }, h("i")));
      return { button, map: h("canvas"), bars: h("canvas") };
    });
    const title = h(
      "span",
      { class: "layer-name", role: "rowheader", title: layer.name },
      h("b", null, number + 1),
      h("small", null, h("bdi", null, layer.name)), // its end is in sight, because the style sheet turns the line round
    );
    const canvas = h("canvas", { "aria-hidden": true });
    const gridcells = cells.map(({ button }) => h("span", { role: "gridcell" }, button));
    const row = matrixRow("matrix-row", title, canvas, ...gridcells);
    row.classList.toggle("has-prefix", layer.prefix.length > 0);
    row.style.setProperty("--tokens", String(layer.prefix.length));
    return { row, canvas, pixel: 1, cells, scene: layer, shape: 1 };
  }

  function paint() {
    for (const [number, line] of rows.entries()) {
      const { row, cells } = line;
      const shown = model.shown(number);
      const view = smallView(model, number);
      row.classList.toggle("empty", !view);
      if (!shown || !view) continue;
      placeMarks(row, view, pictureSize(model));
      const { left, right, top, bottom } = view.extent;
      line.shape = (right - left) / (bottom - top);
      const { heads, prefix } = shown.rows;
      const tokens = prefix.length / heads;
      const changed = [...cells.keys()].filter((head) => {
        const { map, bars } = cells[head];
        const shares = partOf(prefix, head, tokens);
        const other = tokens > 0 && drawBars(bars, shares);
        return paintMap(model, map, number, head, view) || other;
      });
      compose(line, changed);
    }
    clearTimeout(texts);
    texts = window.setTimeout(describe, TEXT_DELAY);
  }

  function describe() {
    for (const [number, { cells, scene }] of rows.entries()) {
      const shown = model.shown(number);
      for (const [head, { button }] of cells.entries()) {
        const words = shown
          ? headSentence(scene, number, head, rowNumbers(scene, shown.rows, head))
          : `Head ${head + 1} of layer ${number + 1} has no map of this query and image`;
        setProp(button, "aria-label", words);
      }
    }
  }

  function choose() {
    const { layer, head } = state.get();
    for (const [number, { row, cells }] of rows.entries()) {
      row.classList.toggle("chosen", number === layer);
      for (const [at, { button }] of cells.entries()) {
        const chosen = number === layer && at === head;
        setProps(button, { tabindex: chosen ? 0 : -1, "aria-pressed": chosen });
      }
    }
  }

  body.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("button.map"));
    if (!button) return;
    select(Number(button.dataset.layer), Number(button.dataset.head));
    opened();
  });
  body.addEventListener("keydown", (event) => {
    const { layer, head } = state.get();
    const target = keyTarget(event, [layer, head]);
    if (!target) return;
    select(...target);
    const now = state.get();
    const { button } = rows[now.layer].cells[now.head];
    button.focus({ preventScroll: true });
    button.scrollIntoView({ block: "nearest", inline: "nearest" });
  });

  return {
    element,
    update() {
      if (built !== state.get().network) build();
      choose();
      paint();
    },
  };
}
