// Every head of every layer as a small map: of all keys, or of those near the query, so that heads that look a pixel away
// can be told apart. A row is a layer, or a word that heads have.

import { div, fill, h, keyTarget, setProp, setProps } from "../dom.js";
import { contextOf, drawBars, drawMap } from "../draw.js";
import { cellExtent, cssShare, extentOf, pictureSize, reachesBeyond } from "./field.js";
import { headSentence, headWord } from "./words.js";
import { clamp, partOf } from "../numbers.js";
import { positionRows } from "../rows.js";
import { cellCentre } from "../scene.js";
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
 * @param {Uint32Array} [colours]
 * @returns {boolean} whether it changed
 */
export function paintMap(model, canvas, number, head, view, network = model.state.get().network, colours) {
  const [low, high] = model.limits(number, head, network);
  const map = model.map(number, head, network);
  const [rows, cols] = view ? [view.rows, view.cols] : model.scene.networks[network].layers[number].keys.grid;
  return drawMap(canvas, view ? view.cut(map) : map, { rows, cols, low, high, colours });
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

/** @typedef {{layer: number, head: number, button: HTMLButtonElement, map: HTMLCanvasElement, bars: HTMLCanvasElement}} MapCell */
/**
 * @typedef {object} MapRow
 * @property {HTMLElement} row
 * @property {HTMLCanvasElement} canvas  below the buttons, with the maps of all of them: browsers are slow at many canvases
 * @property {number} pixel      pixels of the canvas for one of the page
 * @property {MapCell[]} cells   their canvases are not on the page; their layers have one grid
 * @property {SceneLayer} layer  that of the first
 * @property {number} shape      width of a map over its height
 */

/** Pixels between maps, as in the style sheet, and those of a bar of a prefix token. */
const MAP_GAP = 6;
const BAR_WIDTH = 3;

/** @param {string} kind @param {...Child} children */
const matrixRow = (kind, ...children) => h("div", { class: kind, role: "row" }, ...children);

/** By layer, by word, and two words: with one word there is nothing to choose. */
const LEAST_CHOICES = 4;

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
    "aria-label": "Attention maps: a head in each cell",
  });
  const choice = h("select", { "aria-label": "Heads", onchange: () => state.set({ order: choice.value }) });
  const order = h("label", { class: "control" }, h("span", null, "Heads"), choice);
  const element = div("heads", order, div("matrix-scroll", body));
  /** @type {MapRow[]} */
  let rows = [];
  let built = "";
  let listed = -1;
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

  /** @returns {string[][]} the word of each head of each layer, of those without a report from the middle of its grid */
  function wordsOfHeads() {
    return model.network().layers.map((layer, number) => {
      const middle = cellCentre(layer.place, [Math.floor(layer.grid[0] / 2), Math.floor(layer.grid[1] / 2)]);
      const rows = layer.statistics ? null : positionRows(model.scene, layer, number, middle);
      return Array.from({ length: layer.heads }, (_, head) => headWord(layer, rows ?? undefined, head) || "unknown");
    });
  }

  /** Lists the heads of each row: [title, small print, [layer, head] of each]. @returns {[string | number, string, Pair[]][]} */
  function rowsOfHeads() {
    const { layers } = model.network();
    const headsOf = (/** @type {number} */ layer) =>
      Array.from({ length: layers[layer].heads }, (_, head) => /** @type {Pair} */ ([layer, head]));
    const { order } = state.get();
    if (order === "layers") return layers.map(({ name, number }, layer) => [number, name, headsOf(layer)]);
    const words = wordsOfHeads();
    /** @type {Map<string, Pair[]>} by word, and by what one row must share: the grid */
    const groups = new Map();
    for (const [layer, head] of layers.flatMap((_, layer) => headsOf(layer))) {
      const word = words[layer][head];
      if (order !== "words" && order !== word) continue;
      const { place, keys, prefix } = layers[layer];
      const key = JSON.stringify([word, place, keys, prefix]);
      groups.set(key, [...(groups.get(key) ?? []), [layer, head]]);
    }
    const most = Math.max(...layers.map(({ heads }) => heads));
    let before = "";
    return [...groups.keys()].sort().flatMap((key) => {
      const [heads, [word]] = [groups.get(key) ?? [], JSON.parse(key)];
      return Array.from({ length: Math.ceil(heads.length / most) }, (_, at) => {
        const title = word === before ? "" : word;
        before = word;
        const part = heads.slice(at * most, (at + 1) * most);
        return /** @type {[string, string, Pair[]]} */ ([title, "", part]);
      });
    });
  }

  /** Lists the words that there are to choose, once for a network: maps come first. */
  function listWords() {
    if (listed === state.get().network) return;
    listed = state.get().network;
    const words = wordsOfHeads().flat();
    const known = [...new Set(words)].sort();
    const counted = known.map((word) => [word, `only ${word} (${words.filter((one) => one === word).length})`]);
    const choices = [["layers", "by layer"], ["words", "by word"], ...counted];
    fill(choice, ...choices.map(([value, text]) => h("option", { value }, text)));
    order.hidden = choice.options.length < LEAST_CHOICES;
  }

  function build() {
    const { layers } = model.network();
    const { order } = state.get();
    built = `${state.get().network} ${order}`;
    if (order !== "layers") listWords();
    choice.value = order;
    const isLost = choice.selectedIndex < 0 || choice.options.length < LEAST_CHOICES; // where all have one word
    if (isLost && order !== "layers") return state.set({ order: "layers" });
    const most = Math.max(...layers.map(({ heads }) => heads));
    body.style.setProperty("--heads", String(most));
    const numbers = Array.from({ length: most }, (_, head) =>
      h("span", { role: "columnheader", "aria-label": `Head ${head + 1}` }, head + 1),
    );
    const head = matrixRow("matrix-head", h("span", { class: "corner", role: "columnheader" }, "Layer"), ...numbers);
    rows = rowsOfHeads().map(([title, small, heads]) => buildRow(title, small, heads));
    body.style.setProperty("--layers", String(rows.length));
    body.classList.toggle("by-word", order !== "layers");
    body.replaceChildren(...(order === "layers" ? [head] : []), ...rows.map(({ row }) => row));
    resized.disconnect();
    for (const { canvas } of rows) resized.observe(canvas);
  }

  /** Puts maps of a row on its canvas. @param {MapRow} row @param {Iterable<number>} heads */
  function compose({ canvas, pixel, cells, layer, shape }, heads) {
    const most = Number(body.style.getPropertyValue("--heads"));
    const step = (canvas.width + MAP_GAP * pixel) / most;
    const bars = layer.prefix.length && BAR_WIDTH * layer.prefix.length * pixel;
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

  /** @param {string | number} name @param {string} small @param {Pair[]} heads @returns {MapRow} */
  function buildRow(name, small, heads) {
    const layer = model.network().layers[heads[0][0]];
    const cells = heads.map(([number, head]) => {
      const deep = model.network().layers[number].number;
      const props = {
        class: "map",
        "data-layer": number,
        "data-head": head,
        "aria-label": `Head ${head + 1} of layer ${deep}`,
        title: `${deep}.${head + 1}`,
        tabindex: -1,
      };
      const button = h("button", props, h("span", { class: "frame" }, h("i")));
      return { layer: number, head, button, map: h("canvas"), bars: h("canvas") };
    });
    const title = h(
      "span",
      { class: "layer-name", role: "rowheader", title: small },
      h("b", null, name),
      h("small", null, h("bdi", null, small)), // its end is in sight, because the style sheet turns the line round
    );
    const canvas = h("canvas", { "aria-hidden": true });
    const gridcells = cells.map(({ button }) => h("span", { role: "gridcell" }, button));
    const row = matrixRow("matrix-row", title, canvas, ...gridcells);
    row.classList.toggle("has-prefix", layer.prefix.length > 0);
    row.style.setProperty("--tokens", String(layer.prefix.length));
    return { row, canvas, pixel: 1, cells, layer, shape: 1 };
  }

  function paint() {
    for (const line of rows) {
      const { row, cells } = line;
      const view = smallView(model, cells[0].layer);
      row.classList.toggle("empty", !view);
      if (!view) continue;
      placeMarks(row, view, pictureSize(model));
      const { left, right, top, bottom } = view.extent;
      line.shape = (right - left) / (bottom - top);
      const tokens = line.layer.prefix.length;
      const changed = [...cells.keys()].filter((at) => {
        const { layer, head, map, bars } = cells[at];
        const prefix = model.shown(layer)?.rows.prefix;
        const other = tokens > 0 && prefix && drawBars(bars, partOf(prefix, head, tokens));
        return paintMap(model, map, layer, head, view) || other;
      });
      compose(line, changed);
    }
    clearTimeout(texts);
    texts = window.setTimeout(describe, TEXT_DELAY);
  }

  const allCells = () => rows.flatMap(({ cells }) => cells);

  function describe() {
    listWords();
    choice.value = state.get().order;
    for (const { layer, head, button } of allCells()) {
      const shown = model.shown(layer);
      const own = model.network().layers[layer];
      const words = shown
        ? headSentence(own, head, rowNumbers(own, shown.rows, head))
        : `Head ${head + 1} of layer ${own.number} has no map of this query and image`;
      setProp(button, "aria-label", words);
    }
  }

  function choose() {
    const { layer, head } = state.get();
    const isChosen = (/** @type {MapCell} */ cell) => cell.layer === layer && cell.head === head;
    const first = allCells().find(isChosen) ?? rows[0].cells[0]; // which Tab reaches
    for (const { row, cells } of rows) {
      row.classList.toggle("chosen", cells.some(isChosen));
      for (const cell of cells)
        setProps(cell.button, { tabindex: cell === first ? 0 : -1, "aria-pressed": isChosen(cell) });
    }
  }

  body.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("button.map"));
    if (!button) return;
    state.set({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
    opened();
  });
  body.addEventListener("keydown", (event) => {
    const from = rows.findIndex(({ cells }) => cells.some(({ button }) => button === event.target));
    const col = rows[from]?.cells.findIndex(({ button }) => button === event.target) ?? 0;
    const target = keyTarget(event, [from, col]);
    if (!target) return;
    const { cells } = rows[clamp(target[0], 0, rows.length - 1)];
    const { layer, head, button } = cells[clamp(target[1], 0, cells.length - 1)];
    state.set({ layer, head });
    button.focus({ preventScroll: true });
    button.scrollIntoView({ block: "nearest", inline: "nearest" });
  });

  return {
    element,
    update() {
      if (built !== `${state.get().network} ${state.get().order}`) build();
      choose();
      paint();
    },
  };
}
