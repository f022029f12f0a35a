// What the parts of the page share: the rows of the present query, the heads that were moved, and the listeners.

import { positionScores, quadraticAxes, sumOfAxes, tableShape } from "../attention.js";
import { partOf } from "../numbers.js";
import { isPosition, positionRows, rowsOf } from "../rows.js";
import { floatsOf, geometryOf, positionOf } from "../scene.js";
import { readMoved, writeMoved } from "../state.js";
import { belowLargest, colourLimits, relativeScores } from "../statistics.js";

/** @import { LayerRows } from "../rows.js" */
/** @import { PositionAttention, Scene, Tensor } from "../scene.js" */
/** @import { State, ViewState } from "../state.js" */

/**
 * @typedef {object} ShownLayer
 * @property {LayerRows} rows
 * @property {Float32Array} values   heads × keys: what is painted, weights or scores
 */

/**
 * @typedef {object} MovedHeads  those of a layer
 * @property {Float32Array} centres  (heads, 2)
 * @property {Float32Array} sharpness  (heads)
 */

/** @typedef {"rows" | "heads"} ModelNews   other rows, or the reason for none; heads that were moved */

/** @typedef {ReturnType<typeof createModel>} Model */

/** Fields of the state that need other rows. @type {(keyof ViewState)[]} */
const ROW_FIELDS = ["network", "compare", "image", "query", "prefix", "part", "average"];

/** @param {Scene} scene @param {State} state */
export function createModel(scene, state) {
  /** @type {Map<number, Map<number, ShownLayer>>} */
  let shownLayers = new Map();
  /** @type {[number, LayerRows[]][]} what was answered, by network */
  let found = [];
  let trouble = "";
  /** @type {Map<string, MovedHeads>} layers in which the reader moved heads */
  let movedHeads = new Map();
  /** @type {Map<string, MovedHeads>} to where they were at an epoch before the last */
  const epochHeads = new Map();
  /** @type {Scene} */
  let liveScene = scene;
  /** @type {Set<(news: ModelNews) => void>} */
  const listeners = new Set();
  const tell = (/** @type {ModelNews} */ news) => listeners.forEach((listener) => listener(news));
  /** @type {Map<string, [number, number]>} */
  let knownLimits = new Map();

  const networkNumber = () => state.get().network;
  const network = () => scene.networks[networkNumber()];
  const keyOf = (/** @type {number} */ layer) => `${networkNumber()}/${layer}`;

  /** @param {number} number @param {LayerRows} rows @returns {ShownLayer} */
  function shownOf(number, rows) {
    const { values, part } = state.get();
    if (values === "weights") return { rows, values: rows.weights };
    const layer = scene.networks[number].layers[rows.layer];
    const position = positionOf(layer);
    if (!position || !isPosition(layer, part) || "prefix" in rows.query)
      return { rows, values: relativeScores(rows.weights, rows.heads) };
    const tensors = (number === networkNumber() ? liveScene : scene).tensors;
    const scores = positionScores(geometryOf(layer), floatsOf(tensors, position.scores), rows.heads, rows.query);
    return { rows, values: belowLargest(scores, rows.heads) };
  }

  /** @param {number} number @returns {LayerRows[]} */
  function rowsNow(number) {
    const { query, prefix, image, average, part } = state.get();
    const asked = prefix === null ? query : { prefix };
    return withMoved(number, rowsOf(scene, { network: number, image: average ? "mean" : image, query: asked, part }));
  }

  /** @param {number} number @param {LayerRows[]} answer @returns {LayerRows[]} rows of layers with moved heads, computed */
  function withMoved(number, answer) {
    if (number !== networkNumber()) return answer;
    const { query, prefix } = state.get();
    const { layers } = scene.networks[number];
    return answer.map((rows) => {
      const key = keyOf(rows.layer);
      const live = prefix === null && (movedHeads.has(key) || epochHeads.has(key));
      return (live && positionRows(liveScene, layers[rows.layer], rows.layer, query)) || rows;
    });
  }

  function refresh() {
    const wanted = [...new Set([networkNumber(), ...state.get().compare])].filter((number) => scene.networks[number]);
    found = wanted.map((number) => [number, rowsNow(number)]);
    trouble = found[0][1].length ? "" : "No maps of this query and image are in this page.";
    publish();
  }

  function publish() {
    knownLimits = new Map();
    shownLayers = new Map(
      found.map(([number, layers]) => [number, new Map(layers.map((rows) => [rows.layer, shownOf(number, rows)]))]),
    );
    tell("rows");
  }

  /** @param {Iterable<[string, MovedHeads]>} heads @returns {Scene} with the scores of heads at other places */
  function sceneWith(heads) {
    const tensors = new Map(scene.tensors);
    for (const [key, { centres, sharpness }] of heads) {
      const [number, layerNumber] = key.split("/").map(Number);
      const layer = scene.networks[number].layers[layerNumber];
      const position = /** @type {PositionAttention} */ (positionOf(layer));
      const axes = quadraticAxes(centres, sharpness, tableShape(geometryOf(layer)));
      replaceFloats(tensors, position.scores, sumOfAxes(axes, layer.heads));
      position.axes?.forEach((name, axis) => replaceFloats(tensors, name, axes[axis]));
    }
    return { ...scene, tensors };
  }

  /** @param {number} number @param {number} layerNumber @returns {MovedHeads | null} where the scene has heads */
  function headsOfScene(number, layerNumber) {
    const { attention } = scene.networks[number].layers[layerNumber];
    const { centres, sharpness } = attention.kind === "position" ? attention.heads : {};
    if (!centres || !sharpness) return null;
    return { centres: floatsOf(scene.tensors, centres), sharpness: floatsOf(scene.tensors, sharpness) };
  }

  /** @param {Map<string, MovedHeads>} others  where heads are that the reader did not move, if not as in the scene */
  function readerHeads(others) {
    /** @type {Map<string, MovedHeads>} */
    const made = new Map();
    for (const { network, layer, head, centre, sharpness } of readMoved(state.get().moved)) {
      const key = `${network}/${layer}`;
      const before = made.get(key) ?? others.get(key) ?? headsOfScene(network, layer);
      if (!before) continue;
      const heads = made.get(key) ?? { centres: before.centres.slice(), sharpness: before.sharpness.slice() };
      heads.centres.set(centre, 2 * head);
      heads.sharpness[head] = sharpness;
      made.set(key, heads);
    }
    return made;
  }

  function rebuildLiveScene() {
    movedHeads = readerHeads(epochHeads);
    liveScene = sceneWith([...epochHeads, ...movedHeads]);
    found = found.map(([number, rows]) => [number, withMoved(number, rows)]);
    publish();
    tell("heads");
  }

  /** @param {number} layerNumber @returns {MovedHeads | null} */
  function quadratic(layerNumber) {
    const known = movedHeads.get(keyOf(layerNumber)) ?? epochHeads.get(keyOf(layerNumber));
    return known ?? headsOfScene(networkNumber(), layerNumber);
  }

  /** @param {number} layerNumber @param {number} head @param {number} [number] */
  function map(layerNumber, head, number = networkNumber()) {
    const shown = shownLayers.get(number)?.get(layerNumber);
    if (!shown) return new Float32Array(0);
    const size = shown.rows.keyRows * shown.rows.keyCols;
    return partOf(shown.values, head, size);
  }

  function* allMaps() {
    for (const layers of shownLayers.values()) for (const { values } of layers.values()) yield values;
  }

  state.subscribe((_, changed) => {
    if (changed.has("moved")) {
      const before = movedHeads;
      rebuildLiveScene();
      if ([...before.keys()].some((key) => !movedHeads.has(key))) return refresh();
    }
    if (ROW_FIELDS.some((field) => changed.has(field))) return refresh();
    if (changed.has("values") || changed.has("scale") || changed.has("extent")) publish();
  });

  if (state.get().moved.length) rebuildLiveScene();
  return {
    scene,
    state,
    map,
    quadratic,
    refresh,
    network,
    /** The chosen one. */
    layer: () => network().layers[state.get().layer],
    /** Null while there are no rows. @param {number} layer @param {number} [number] of the network */
    shown: (layer, number = networkNumber()) => shownLayers.get(number)?.get(layer) ?? null,
    /** Limits of the colours of a map. @param {number} layer @param {number} head @param {number} [number] */
    limits(layer, head, number = networkNumber()) {
      const { scale, values } = state.get();
      const key = scale === "own" ? `${number}/${layer}/${head}` : "";
      const known = knownLimits.get(key);
      if (known) return known;
      const made = colourLimits(scale, values, map(layer, head, number), allMaps);
      knownLimits.set(key, made);
      return made;
    },
    /** Why there are no rows; empty if there are. */
    trouble: () => trouble,
    anyMoved: () => movedHeads.size > 0,
    /** @param {number} layer @param {number} head @param {[number, number]} centre @param {number} [sharpness] */
    move(layer, head, centre, sharpness) {
      const now = quadratic(layer);
      if (!now) return;
      const network = networkNumber();
      const others = readMoved(state.get().moved).filter(
        (one) => one.network !== network || one.layer !== layer || one.head !== head,
      );
      const [row, col] = centre.map((size) => Number(size.toFixed(4))); // an address is short
      const alpha = Number((sharpness ?? now.sharpness[head]).toPrecision(5));
      state.set({ moved: writeMoved([...others, { network, layer, head, centre: [row, col], sharpness: alpha }]) });
    },
    /** Puts the heads that the reader did not move where they were at an epoch. @param {Map<number, MovedHeads>} layers none: at the last */
    setEpoch(layers) {
      if (!layers.size && !epochHeads.size) return;
      epochHeads.clear();
      for (const [layer, heads] of layers) if (quadratic(layer)) epochHeads.set(keyOf(layer), heads);
      rebuildLiveScene();
      if (!epochHeads.size) refresh();
    },
    /** Whether the network's heads, but for those that the reader moved, are those of the last epoch. */
    isLastEpoch: () => ![...epochHeads.keys()].some((key) => key.startsWith(`${networkNumber()}/`)),
    /** Whether a head is another than the scene has, moved or at another epoch. @param {number} layer @param {number} head */
    isChanged(layer, head) {
      const network = networkNumber();
      const moved = readMoved(state.get().moved).some(
        (one) => one.network === network && one.layer === layer && one.head === head,
      );
      return moved || epochHeads.has(keyOf(layer));
    },
    reset: () => state.set({ moved: [] }),
    /** @returns {number | null} first layer of the network with a moved head */
    firstMoved() {
      const here = [...movedHeads.keys()]
        .map((key) => key.split("/").map(Number))
        .filter(([number]) => number === networkNumber());
      return here.length ? Math.min(...here.map(([, layer]) => layer)) : null;
    },
    /** The scene with the scores of heads that the reader moved; its other heads are those of the last epoch. */
    movedScene: () => sceneWith(readerHeads(new Map())),
    /** Scores of displacements as they are now. @param {number} layerNumber */
    table(layerNumber) {
      const position = positionOf(network().layers[layerNumber]);
      return position ? floatsOf(liveScene.tensors, position.scores) : null;
    },
    listen: (/** @type {(news: ModelNews) => void} */ listener) => void listeners.add(listener),
  };
}

/** @param {Map<string, Tensor>} tensors @param {string} name @param {Float32Array} data */
function replaceFloats(tensors, name, data) {
  const tensor = tensors.get(name);
  if (tensor) tensors.set(name, { ...tensor, dtype: "F32", data });
}
