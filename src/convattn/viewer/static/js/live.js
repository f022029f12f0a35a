import { floatsOf } from "./safetensors.js";

/**
 * Layers of a scene whose attention depends on displacements alone, ready to be computed.
 *
 * @typedef {import("./scene.js").Scene} Scene
 * @typedef {import("./scene.js").SceneLayer} SceneLayer
 * @typedef {import("./scene.js").PositionAttention} PositionAttention
 * @typedef {import("./scores.js").LayerGeometry} LayerGeometry
 * @typedef {import("./attention.js").LiveLayer} LiveLayer
 */

/**
 * Returns the part of a layer's attention that depends on displacements alone, if there is one.
 *
 * @param {SceneLayer} layer
 * @returns {PositionAttention | null}
 */
export function positionOf({ attention }) {
  return attention.kind === "position" ? attention : attention.position;
}

/**
 * Returns where the queries of a layer stand among its keys.
 *
 * @param {SceneLayer} layer
 * @returns {LayerGeometry}
 */
export function geometryOf(layer) {
  const position = positionOf(layer);
  if (!position) throw new Error(`${layer.name} has no scores of displacements`);
  return { keys: layer.keys.grid, grid: layer.grid, first: position.queries.first, stride: position.queries.stride };
}

/**
 * Returns a layer with its numbers, for `attend`.
 *
 * @param {Scene} scene
 * @param {SceneLayer} layer
 * @returns {LiveLayer}
 */
export function liveLayer(scene, layer) {
  const position = positionOf(layer);
  const values = position?.values && scene.tensors.get(position.values);
  if (!position || !values) throw new Error(`${layer.name} cannot be computed in the page`);
  const [heads, outputs, width] = values.shape;
  const numbers = (/** @type {string} */ name) => floatsOf(scene.tensors, name);
  return {
    heads,
    geometry: geometryOf(layer),
    scores: numbers(position.scores),
    axes: position.axes && [numbers(position.axes[0]), numbers(position.axes[1])],
    values: numbers(position.values ?? ""),
    outputs,
    inputs: width * position.groups,
    groups: position.groups,
    bias: position.bias ? numbers(position.bias) : null,
    padding: position.padding,
  };
}
