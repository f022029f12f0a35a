// A state that a scene can show, and why it cannot show others.

import { positionOf } from "../live.js";
import { pictureShape } from "../scene.js";

/** @typedef {import("../state.js").ViewState} ViewState */

/**
 * Keeps a state within a scene: what the scene does not have is replaced by what it has.
 * @param {import("../scene.js").Scene} scene
 * @param {ViewState} state
 * @returns {ViewState}
 */
export function withinScene(scene, state) {
  const below = (/** @type {number} */ value, /** @type {number} */ count) => Math.min(value, Math.max(count - 1, 0));
  const network = below(state.network, scene.networks.length);
  const { layers } = scene.networks[network];
  const layer = below(state.layer, layers.length);
  const image = scene.images[state.image] ? state.image : 0;
  const [rows, cols] = pictureShape(scene, image);
  return {
    ...state,
    network,
    layer,
    image,
    head: below(state.head, layers[layer].heads),
    query: [below(state.query[0], rows), below(state.query[1], cols)],
    compare: state.compare.filter((other) => other < scene.networks.length),
    part: whyNoPart(layers, state.part) ? "both" : state.part,
    average: state.average && !whyNoAverage(layers),
    prefix: state.prefix !== null && layers[layer].prefix[state.prefix] === undefined ? null : state.prefix,
  };
}

/**
 * Says why a part of the scores cannot be shown; null if it can.
 * @param {import("../scene.js").SceneLayer[]} layers
 * @param {"both" | "position" | "content"} part
 * @returns {string | null}
 */
export function whyNoPart(layers, part) {
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
export function whyNoAverage(layers) {
  const maps = layers.flatMap(({ attention }) => (attention.kind === "maps" ? [attention] : []));
  if (!maps.length) return "Their maps are the same for every image.";
  return maps.some((attention) => attention.images.includes("mean") || !attention.stored)
    ? null
    : "The average over images is not in this page.";
}
