// What a person asks of a head: three questions, each of which sets the controls, and the way to all of them.

import { div, h, say, setProps } from "../dom.js";
import { whyNoAverage } from "./choices.js";
import { directionWords, percent } from "./words.js";
import { partOf } from "../numbers.js";
import { rowsOf } from "../rows.js";

/** @import { Model } from "./model.js" */
/** @import { ViewState } from "../state.js" */

/** @type {Record<ViewState["ask"], string>} */
const QUESTIONS = {
  look: "Where does it look?",
  place: "By place or by content?",
  move: "What changes if I move it?",
};

/** What is shown without all controls: nothing that only they could put back. @type {Partial<ViewState>} */
const PLAIN = { values: "weights", part: "both", scale: "own" };

/** Tells whether heads of a layer have a centre that can be moved. @param {Model} model @param {number} layer */
const canMove = (model, layer) => model.quadratic(layer) !== null;

/** @param {Model} model @returns {{element: HTMLElement, update: () => void}} */
export function createAsks(model) {
  const { state } = model;
  const names = /** @type {ViewState["ask"][]} */ (Object.keys(QUESTIONS));
  const buttons = names.map((ask) => h("button", { class: "choice", onclick: () => answer(ask) }, QUESTIONS[ask]));
  const more = h("button", {
    class: "all-controls",
    onclick: () => state.set(state.get().controls ? { controls: false, epoch: null, ...PLAIN } : { controls: true }),
  });

  /** @param {ViewState["ask"]} ask */
  function answer(ask) {
    const { layers } = model.network();
    const average = ask === "place" && !whyNoAverage(layers);
    const { layer } = state.get();
    const movable = [layer, ...layers.keys()].find((number) => canMove(model, number)) ?? layer;
    const head = ask === "move" && movable !== layer ? { layer: movable, head: 0 } : {};
    state.set({ ask, average, ...PLAIN, ...head });
  }

  return {
    element: div("asks", h("div", { role: "group", "aria-label": "Questions" }, ...buttons), more),
    update() {
      const { ask, controls } = state.get();
      buttons.forEach((button, at) => setProps(button, { "aria-pressed": names[at] === ask }));
      setProps(more, { "aria-expanded": controls });
      say(more, controls ? "Fewer controls" : "All controls");
    },
  };
}

/** Answers the question for the chosen head, beyond what its map shows. @param {Model} model @returns {string} */
export function answerTo(model) {
  const { ask, layer: number, head } = model.state.get();
  const layer = model.layer();
  if (ask === "look") return "";
  if (ask === "place") {
    if (layer.attention.kind === "position")
      return "By place: its scores are of displacements alone. Choose another picture: the map stays.";
    if (!layer.normalised) return "No share says it: weights of this layer do not sum to one.";
    const kept = shareKept(model);
    if (Number.isNaN(kept)) return "Too few maps to tell: what stays on others is place.";
    const shown = model.state.get().average ? "Shown is the mean over all pictures: what stays is place. " : "";
    return `${shown}${percent(kept)} of the map of this picture is in the mean of the others; the rest is content.`;
  }
  if (!canMove(model, number)) {
    const source =
      layer.attention.kind === "position" ? "are of displacements, by another function" : "come from the image";
    return `Heads of this layer have no centre to move: their scores ${source}.`;
  }
  const heads = model.quadratic(number);
  const [down, right] = heads ? heads.centres.slice(2 * head, 2 * head + 2) : [0, 0];
  return `Drag the ring, or use arrow keys on it. It is nearest to the tap: ${directionWords([Math.round(down), Math.round(right)])}.`;
}

/** Returns the share of the map of the chosen image that the mean over the others has, too. @param {Model} model */
function shareKept({ scene, state }) {
  const { network: number, image, query, prefix, layer, head } = state.get();
  const asked = prefix === null ? query : { prefix };
  const [own, mean] = /** @type {const} */ ([image, "mean"]).map((which) => {
    const layers = rowsOf(scene, { network: number, image: which, query: asked, part: "both" }, layer);
    return layers.length ? partOf(layers[0].weights, head, layers[0].keyRows * layers[0].keyCols) : null;
  });
  const { attention } = scene.networks[number].layers[layer];
  const count = "images" in attention ? attention.images.length - 1 : 0; // but the mean
  if (!own || !mean) return NaN;
  let [shared, all] = [0, 0];
  own.forEach((weight, key) => {
    if (Number.isNaN(weight)) return;
    const others = (count * mean[key] - weight) / (count - 1); // the mean is over this image as well
    shared += Math.min(weight, Math.max(others, 0));
    all += weight;
  });
  return shared / all;
}
