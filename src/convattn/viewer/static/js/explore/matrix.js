// Every head of every layer as a small map: rows are layers, columns are heads.

import { h } from "../dom.js";
import { drawBars, drawMap } from "../draw.js";
import { rowNumbers } from "../statistics.js";
import { cellExtent, extentOf } from "./field.js";
import { headSentence } from "./words.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("../scene.js").SceneLayer} SceneLayer */
/** @typedef {{button: HTMLButtonElement, canvas: HTMLCanvasElement, bars: HTMLCanvasElement | null}} MapCell */
/** @typedef {{row: HTMLElement, cells: MapCell[], scene: SceneLayer}} MapRow */

/** Time after the last change at which the texts for screen readers follow, in ms: maps come first. */
const TEXT_DELAY = 250;

/**
 * @param {Model} model
 * @param {(button: HTMLElement) => void} opened called when a head was chosen by pointer or Enter
 * @returns {{element: HTMLElement, update: () => void, choose: () => void, destroy: () => void}}
 */
export function createMatrix(model, opened) {
  const { state } = model;
  const body = h("div", {
    class: "matrix",
    role: "grid",
    "aria-label": "Attention maps: a row for each layer, a column for each head",
  });
  const element = h("div", { class: "matrix-scroll" }, body);
  /** @type {MapRow[]} */
  let rows = [];
  let built = -1;
  let texts = 0;

  /** @param {number} layer @param {number} head */
  function select(layer, head) {
    const at = Math.min(Math.max(layer, 0), rows.length - 1);
    state.set({ layer: at, head: Math.min(Math.max(head, 0), rows[at].cells.length - 1) });
  }

  function build() {
    const { layers } = model.network();
    built = state.get().network;
    const most = Math.max(...layers.map(({ heads }) => heads));
    body.style.setProperty("--heads", String(most));
    const numbers = Array.from({ length: most }, (_, head) =>
      h("span", { role: "columnheader", "aria-label": `Head ${head + 1}` }, head + 1),
    );
    const head = h(
      "div",
      { class: "matrix-head", role: "row" },
      h("span", { class: "corner", role: "columnheader" }, "Layer"),
      ...numbers,
    );
    rows = layers.map((layer, number) => buildRow(layer, number));
    body.replaceChildren(head, ...rows.map(({ row }) => row));
    body.classList.toggle(
      "has-prefix",
      layers.some(({ prefix }) => prefix.length > 0),
    );
  }

  /** @param {SceneLayer} layer @param {number} number @returns {MapRow} */
  function buildRow(layer, number) {
    const cells = Array.from({ length: layer.heads }, (_, head) => {
      const canvas = h("canvas", { class: "pixels" });
      const bars = layer.prefix.length ? h("canvas", { class: "pixels bars" }) : null;
      const label = `Head ${head + 1} of layer ${number + 1}`;
      const props = {
        type: "button",
        class: "map",
        "data-layer": number,
        "data-head": head,
        "aria-label": label,
        tabindex: -1,
      };
      const button = h("button", props, h("span", { class: "frame" }, canvas), bars);
      return { button, canvas, bars };
    });
    const title = h(
      "span",
      { class: "layer-name", role: "rowheader", title: layer.name },
      h("b", null, number + 1),
      h("small", null, layer.name),
    );
    const row = h(
      "div",
      { class: "matrix-row", role: "row" },
      title,
      ...cells.map(({ button }) => h("span", { role: "gridcell" }, button)),
    );
    const whole = extentOf(layer.keys, layer.keys.grid);
    const inside = extentOf(layer.place, layer.grid);
    const [width, height] = [whole.right - whole.left, whole.bottom - whole.top];
    row.style.setProperty("--shape", `${width} / ${height}`);
    const padded = inside.left > whole.left + 1e-6 || inside.top > whole.top + 1e-6;
    row.classList.toggle("padded", padded);
    const edges = [
      inside.top - whole.top,
      whole.right - inside.right,
      whole.bottom - inside.bottom,
      inside.left - whole.left,
    ];
    const lengths = [height, width, height, width];
    row.style.setProperty("--inside", edges.map((edge, at) => `${(100 * Math.max(edge, 0)) / lengths[at]}%`).join(" "));
    return { row, cells, scene: layer };
  }

  function paint() {
    const theme = model.theme();
    for (const [number, { row, cells, scene }] of rows.entries()) {
      const shown = model.shown(number);
      row.classList.toggle("empty", !shown);
      if (!shown) continue;
      const { query, keyRows, keyCols, heads, prefix } = shown.rows;
      const placed = !("prefix" in query);
      row.classList.toggle("placeless", !placed);
      if (placed) {
        const whole = extentOf(scene.keys, scene.keys.grid);
        const cell = cellExtent(scene, query);
        const middle = [(cell.top + cell.bottom) / 2, (cell.left + cell.right) / 2];
        row.style.setProperty("--query-top", `${(100 * (middle[0] - whole.top)) / (whole.bottom - whole.top)}%`);
        row.style.setProperty("--query-left", `${(100 * (middle[1] - whole.left)) / (whole.right - whole.left)}%`);
      }
      const tokens = prefix.length / heads;
      for (const [head, { canvas, bars }] of cells.entries()) {
        const [low, high] = model.limits(number, head);
        drawMap(canvas, model.map(number, head), { rows: keyRows, cols: keyCols, low, high, theme });
        if (bars) drawBars(bars, prefix.subarray(head * tokens, (head + 1) * tokens), { bar: theme });
      }
    }
    clearTimeout(texts);
    texts = setTimeout(describe, TEXT_DELAY);
  }

  function describe() {
    for (const [number, { cells, scene }] of rows.entries()) {
      const shown = model.shown(number);
      if (!shown) continue;
      for (const [head, { button }] of cells.entries()) {
        button.setAttribute("aria-label", headSentence(scene, number, head, rowNumbers(scene, shown.rows, head)));
      }
    }
  }

  function choose() {
    const { layer, head } = state.get();
    for (const [number, { row, cells }] of rows.entries()) {
      row.classList.toggle("chosen", number === layer);
      for (const [at, { button }] of cells.entries()) {
        const chosen = number === layer && at === head;
        if (button.tabIndex === (chosen ? 0 : -1) && button.getAttribute("aria-pressed") === String(chosen)) continue;
        button.tabIndex = chosen ? 0 : -1;
        button.setAttribute("aria-pressed", String(chosen));
      }
    }
  }

  body.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("button.map"));
    if (!button) return;
    select(Number(button.dataset.layer), Number(button.dataset.head));
    opened(button);
  });
  body.addEventListener("keydown", (event) => {
    const { layer, head } = state.get();
    /** @type {Record<string, [number, number]>} */
    const targets = {
      ArrowUp: [layer - 1, head],
      ArrowDown: [layer + 1, head],
      ArrowLeft: [layer, head - 1],
      ArrowRight: [layer, head + 1],
      Home: [layer, 0],
      End: [layer, Infinity],
      PageUp: [0, head],
      PageDown: [Infinity, head],
    };
    const target = targets[event.key];
    if (!target) return;
    event.preventDefault();
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
    choose,
    destroy: () => clearTimeout(texts),
  };
}
