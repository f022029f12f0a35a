// The chosen head in other networks of the scene, beside each other: trained, untrained, converted.

import { div, h, para, say, section, span } from "../dom.js";
import { rowNumbers } from "../statistics.js";
import { chooseNetwork } from "./controls.js";
import { pictureSize } from "./query.js";
import { paintMap, placeMarks, smallView } from "./small.js";
import { lookWords, percent } from "./words.js";

/** @typedef {import("./model.js").Model} Model */

/**
 * @param {Model} model
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createComparison(model) {
  const { scene, state } = model;
  const columns = scene.networks.map(({ title, note }, number) => {
    const canvas = h("canvas");
    const text = para("compare-numbers");
    const beside = h("input", { type: "checkbox", onchange: () => toggle(number) });
    const box = h("label", { class: "check" }, beside, span(title));
    const open = h("button", { onclick: () => chooseNetwork(model, number) }, "Show all its heads");
    const figure = div("compare-map", h("span", { class: "frame" }, canvas, h("i")));
    const element = div("compare-column", box, figure, text, open);
    if (note) box.title = note;
    return { element, canvas, text, beside, open, figure };
  });
  const element = section(
    "compare",
    "Networks side by side",
    h("h2", null, "This head in other networks"),
    div("compare-columns", ...columns.map((column) => column.element)),
  );
  element.hidden = scene.networks.length < 2;

  /** @param {number} number */
  function toggle(number) {
    const { compare } = state.get();
    const next = compare.includes(number) ? compare.filter((other) => other !== number) : [...compare, number];
    state.set({ compare: next.sort((one, other) => one - other) });
  }

  return {
    element,
    update() {
      if (element.hidden) return;
      const { layer: number, head, network, compare } = state.get();
      for (const [at, { canvas, text, beside, open, figure }] of columns.entries()) {
        const present = at === network;
        beside.checked = present || compare.includes(at);
        beside.disabled = present;
        open.hidden = present || !beside.checked;
        const layer = scene.networks[at].layers[number];
        const shown = beside.checked ? model.shown(number, at) : null;
        const view = smallView(model, number, at);
        figure.hidden = !shown || !layer || head >= layer.heads;
        if (figure.hidden || !shown || !view) {
          say(text, beside.checked ? "It has no such head." : "");
          continue;
        }
        placeMarks(figure, view, pictureSize(model));
        paintMap(model, canvas, number, head, view, at);
        const found = rowNumbers(layer, shown.rows, head);
        say(text, [lookWords(layer, found), `hard share ${percent(found.hardShare)}`].filter(Boolean).join(", "));
      }
    },
  };
}
