// What is painted, and how: one line of choices above the maps, and the bar of their colours below it.

import { div, freshId, h, say, span } from "../dom.js";
import { drawRamp, numberText } from "../draw.js";
import { createSegments } from "../segments.js";
import { whyNoAverage, whyNoPart, withinScene } from "./within.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("../state.js").SomeState} SomeState */

/**
 * @param {Model} model
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createControls(model) {
  const { state, scene } = model;
  const network = h("select", {
    "aria-label": "Network",
    onchange: () => chooseNetwork(model, network.selectedIndex),
  });
  network.append(...scene.networks.map(({ title }) => h("option", null, title)));
  const networkBox = h("label", { class: "control" }, span("Network"), network);
  networkBox.hidden = scene.networks.length < 2;

  const choose = (/** @type {"part" | "extent"} */ field) => (/** @type {string} */ value) =>
    state.set({ [field]: value });
  const values = createSegments("Show", { weights: "Weights", scores: "Before softmax" }, (value) => {
    const scale = typeof state.get().scale === "number" ? "own" : state.get().scale;
    state.set({ values: /** @type {"weights" | "scores"} */ (value), scale });
  });
  const part = createSegments("Part", { both: "Both", position: "Position", content: "Content" }, choose("part"));
  const extent = createSegments("Small maps", { whole: "Whole image", near: "Near the query" }, choose("extent"));
  const limit = h("input", {
    type: "number",
    class: "limit",
    min: "0",
    step: "any",
    "aria-label": "Largest value of the colour scale",
    onchange: () => Number(limit.value) > 0 && state.set({ scale: Number(limit.value) }),
  });
  const scale = createSegments("Colour scale", { own: "Each its own", common: "Common", fixed: "Fixed" }, (value) =>
    state.set({ scale: value === "fixed" ? fixedLimit(model) : /** @type {"own" | "common"} */ (value) }),
  );
  const average = h("input", { type: "checkbox", onchange: () => state.set({ average: average.checked }) });
  const averageBox = h("label", { class: "check" }, average, span("Average over images"));
  const why = h("p", { class: "why", id: freshId("why") });
  for (const one of [part.element, average]) one.setAttribute("aria-describedby", why.id);

  const choices = div(
    "controls",
    values.element,
    part.element,
    div("with-limit", scale.element, limit),
    extent.element,
    averageBox,
    why,
  );
  const more = h("details", { class: "more" }, h("summary", null, "What is shown, and how"), choices);
  const wide = matchMedia("(min-width: 760px)"); // as in the style sheet, which hides the summary then
  const unfold = () => void (more.open = wide.matches);
  wide.addEventListener("change", unfold);
  unfold();
  const element = div("choosing", networkBox, more);

  return {
    element,
    update() {
      const now = state.get();
      network.selectedIndex = now.network;
      values.set(now.values);
      part.set(now.part);
      extent.set(now.extent);
      const fixed = typeof now.scale === "number";
      scale.set(fixed ? "fixed" : String(now.scale));
      limit.hidden = !fixed;
      if (fixed && document.activeElement !== limit) limit.value = String(now.scale);
      const { layers } = model.network();
      const [noPosition, noContent] = [whyNoPart(layers, "position"), whyNoPart(layers, "content")];
      part.allow("position", noPosition);
      part.allow("content", noContent);
      average.checked = now.average;
      const noAverage = whyNoAverage(layers);
      average.disabled = noAverage !== null;
      averageBox.classList.toggle("disabled", average.disabled);
      say(why, [...new Set([noPosition, noContent, noAverage])].filter(Boolean).join(" "));
    },
  };
}

/**
 * Chooses another network, with the head at the same place if it has one.
 * @param {Model} model
 * @param {number} network
 */
export function chooseNetwork({ scene, state }, network) {
  state.set(withinScene(scene, { ...state.get(), network }));
}

/** @param {Model} model @returns {number} the largest value now, to start a fixed scale from */
function fixedLimit(model) {
  const { layer, head, values } = model.state.get();
  const [low, high] = model.limits(layer, head);
  return Number((values === "scores" ? -low : high).toPrecision(2)) || 1;
}

/**
 * @param {Model} model
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createColourBar(model) {
  const canvas = h("canvas", { class: "ramp", "aria-hidden": true });
  const marks = Array.from({ length: 5 }, () => h("span"));
  const title = h("span", { class: "bar-title" });
  const element = div("colour-bar", title, div("bar", canvas, div("bar-marks", ...marks)));
  return {
    element,
    update() {
      const { layer, head, scale, values } = model.state.get();
      drawRamp(canvas, model.theme());
      const [low, high] = model.limits(layer, head);
      marks.forEach((mark, at) => say(mark, numberText(low + ((high - low) * at) / (marks.length - 1), 2)));
      const what = values === "weights" ? "Weight" : "Log weight below the largest";
      const whose = scale === "own" ? `, layer ${layer + 1} head ${head + 1} (each map has its own)` : ", all maps";
      say(title, what + whose);
    },
  };
}
