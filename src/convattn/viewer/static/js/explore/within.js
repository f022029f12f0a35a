// A state that a scene can show.

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
  const image = below(state.image, scene.images.length);
  const [rows, cols] = pictureShape(scene, image);
  return {
    ...state,
    network,
    layer,
    image,
    head: below(state.head, layers[layer].heads),
    query: [below(state.query[0], rows), below(state.query[1], cols)],
    compare: state.compare.filter((other) => other < scene.networks.length),
    prefix: state.prefix !== null && layers[layer].prefix[state.prefix] === undefined ? null : state.prefix,
  };
}
