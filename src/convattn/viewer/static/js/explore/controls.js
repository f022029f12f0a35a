// What is painted, and how: one line of choices above the maps, and the bar of their colours below it.

import { div, freshId, h, say } from "../dom.js";
import { drawRamp, numberText } from "../draw.js";
import { positionOf } from "../live.js";
import { createSegments } from "../segments.js";
import { withinScene } from "./within.js";

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
  const networkBox = h("label", { class: "control" }, h("span", null, "Network"), network);
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
  const averageBox = h("label", { class: "check" }, average, h("span", null, "Average over images"));
  const why = h("p", { class: "why", id: freshId("why") });
  part.element.setAttribute("aria-describedby", why.id);
  average.setAttribute("aria-describedby", why.id);

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
      scale.set(typeof now.scale === "number" ? "fixed" : now.scale);
      limit.hidden = typeof now.scale !== "number";
      if (typeof now.scale === "number" && document.activeElement !== limit) limit.value = String(now.scale);
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
  const wanted = withinScene(scene, { ...state.get(), network });
  const known = whyNoPart(scene.networks[network].layers, wanted.part) === null;
  state.set(known ? wanted : { ...wanted, part: "both" });
}

/**
 * Says why a part of the scores cannot be shown; null if it can.
 * @param {import("../scene.js").SceneLayer[]} layers
 * @param {"both" | "position" | "content"} part
 * @returns {string | null}
 */
function whyNoPart(layers, part) {
  if (part === "both") return null;
  if (layers.every(({ attention }) => attention.kind === "position")) {
    return "These heads look at displacements only, so there is no content part to take away.";
  }
  const some = layers.some((layer) =>
    layer.attention.kind === "maps"
      ? layer.attention.parts.includes(part) || (part === "position" && positionOf(layer))
      : part === "position",
  );
  return some ? null : "The scores of these heads do not come in parts.";
}

/**
 * Says why maps cannot be averaged over images; null if they can.
 * @param {import("../scene.js").SceneLayer[]} layers
 * @returns {string | null}
 */
function whyNoAverage(layers) {
  const maps = layers.flatMap(({ attention }) => (attention.kind === "maps" ? [attention] : []));
  if (!maps.length) return "Their maps are the same for every image.";
  return maps.some((attention) => attention.images.includes("mean") || !attention.stored)
    ? null
    : "The average over images is not in this page.";
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
