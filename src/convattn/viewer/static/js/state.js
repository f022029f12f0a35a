// What is looked at: one object, listeners, and its text in the address.

/**
 * @typedef {object} ViewState
 * @property {"explore" | "learn"} view
 * @property {number} step           of the tour, from 0
 * @property {number} network
 * @property {number[]} compare      networks beside this one
 * @property {number} image
 * @property {[number, number]} query   pixel of the image: [row, col]
 * @property {number | null} prefix  query that is no pixel: number of the prefix token
 * @property {number} layer
 * @property {number} head
 * @property {"common" | "own" | number} scale
 * @property {"weights" | "scores"} values
 * @property {"whole" | "near"} extent   of the small maps: the whole image, or what is near the query
 * @property {"both" | "position" | "content"} part
 * @property {boolean} average       over the images of the scene
 * @property {number | null} epoch   moment of the timeline; null for the last
 * @property {number[]} moved        heads that the reader moved, as `writeMoved` writes them
 * @property {"look" | "place" | "move"} ask   the question above the maps
 * @property {boolean} controls      whether all controls are there
 * @property {string} order          of the heads: "layers", "words", or the one word whose heads are shown
 * @property {number[]} beside       layer and head that are kept beside the chosen one; empty for none
 */

/**
 * @typedef {object} MovedHead
 * @property {number} network
 * @property {number} layer
 * @property {number} head
 * @property {[number, number]} centre   in steps of the keys
 * @property {number} sharpness
 */

/** @typedef {Partial<ViewState>} SomeState */
/** @typedef {(state: ViewState, changed: Set<keyof ViewState>) => void} StateListener */

/**
 * @typedef {object} State
 * @property {() => ViewState} get
 * @property {(change: SomeState) => void} set   tells the listeners once, of the fields that are other than before
 * @property {(listener: StateListener) => void} subscribe
 */

/** @type {Readonly<ViewState>} */
export const DEFAULT_STATE = Object.freeze({
  view: "explore",
  step: 0,
  network: 0,
  compare: [],
  image: 0,
  query: /** @type {[number, number]} */ ([0, 0]),
  prefix: null,
  layer: 0,
  head: 0,
  scale: "own",
  values: "weights",
  extent: "whole",
  part: "both",
  average: false,
  epoch: null,
  moved: [],
  ask: "look",
  controls: false,
  order: "layers",
  beside: [],
});

/** @param {MovedHead[]} heads @returns {number[]} six numbers for each */
export const writeMoved = (heads) =>
  heads.flatMap(({ network, layer, head, centre, sharpness }) => [network, layer, head, ...centre, sharpness]);

const MOVED_NUMBERS = 6;

/** @param {number[]} numbers @returns {MovedHead[]} */
export function readMoved(numbers) {
  return Array.from({ length: numbers.length / MOVED_NUMBERS }, (_, at) => {
    const [network, layer, head, row, col, sharpness] = numbers.slice(at * MOVED_NUMBERS);
    return { network, layer, head, centre: [row, col], sharpness };
  });
}

/** Makes a state. @param {SomeState} [initial] @returns {State} */
export function createState(initial = {}) {
  let current = { ...DEFAULT_STATE, ...initial };
  /** @type {StateListener[]} */
  const listeners = [];
  return {
    get: () => current,
    set(change) {
      const changed = /** @type {Set<keyof ViewState>} */ (new Set(differences(change, current).map(([name]) => name)));
      if (!changed.size) return;
      current = { ...current, ...change };
      for (const listener of [...listeners]) listener(current, changed);
    },
    subscribe: (listener) => void listeners.push(listener),
  };
}

/** @param {unknown} one @param {unknown} other @returns {boolean} */
function sameValue(one, other) {
  if (Array.isArray(one) && Array.isArray(other))
    return one.length === other.length && one.every((item, n) => item === other[n]);
  return Object.is(one, other);
}

/** @param {SomeState} wanted @param {Readonly<ViewState>} from @returns {[string, unknown][]} the fields that are others */
const differences = (wanted, from) =>
  Object.entries(wanted).filter(([name, value]) => !sameValue(value, from[/** @type {keyof ViewState} */ (name)]));

/**
 * Writes what differs from the defaults, as the part of an address after "#".
 * @param {ViewState} state
 * @param {Readonly<ViewState>} [defaults] what a page shows without a hash
 * @returns {string} such as "layer=2&query=10,12"; empty if nothing differs
 */
export function toHash(state, defaults = DEFAULT_STATE) {
  return differences(state, defaults)
    .map(
      ([name, value]) =>
        `${name}=${Array.isArray(value) ? value.join(",") : value === null ? "none" : encodeURI(String(value))}`,
    )
    .join("&");
}

/** @param {string} text @returns {number | undefined} a whole number from 0 */
function wholeNumber(text) {
  return /^\d{1,6}$/.test(text) ? Number(text) : undefined;
}

/** @param {string} text @returns {number[] | undefined} */
function wholeNumbers(text) {
  if (text === "") return [];
  const found = text.split(",").map(wholeNumber);
  return found.every((item) => item !== undefined) ? /** @type {number[]} */ (found) : undefined;
}

/** How many moved heads an address may name, and its largest numbers. */
const MOVED_LIMITS = { heads: 256, centre: 1e4, sharpness: 1e6 };

/** @param {MovedHead} head @returns {boolean} whether it can be one */
function isMoved({ network, layer, head, centre, sharpness }) {
  const places = [network, layer, head].every((place) => Number.isInteger(place) && place >= 0);
  const centred = centre.every((size) => Math.abs(size) <= MOVED_LIMITS.centre); // false for NaN
  return places && centred && sharpness > 0 && sharpness <= MOVED_LIMITS.sharpness;
}

/** @param {string} text @returns {number[] | undefined} */
function movedNumbers(text) {
  if (text === "") return [];
  const numbers = text.split(",").map((part) => (part.trim() ? Number(part) : NaN));
  const whole = numbers.length % MOVED_NUMBERS === 0 && numbers.length <= MOVED_LIMITS.heads * MOVED_NUMBERS;
  return whole && readMoved(numbers).every(isMoved) ? numbers : undefined;
}

/** What a word in an address may be. @type {Record<string, readonly string[]>} */
const WORDS = {
  view: ["explore", "learn"],
  values: ["weights", "scores"],
  extent: ["whole", "near"],
  part: ["both", "position", "content"],
  scale: ["own", "common"],
  average: ["true", "false"],
  ask: ["look", "place", "move"],
  controls: ["true", "false"],
};

/** @param {string} name @param {string} text @returns {unknown} the value of a field; undefined if it makes no sense */
function readField(name, text) {
  const was = DEFAULT_STATE[/** @type {keyof ViewState} */ (name)];
  if (WORDS[name]?.includes(text)) return typeof was === "boolean" ? text === "true" : text;
  if (name === "order") return text;
  if (name === "scale") return Number(text) > 0 && Number(text) < Infinity ? Number(text) : undefined;
  if (name === "moved") return movedNumbers(text);
  if (Array.isArray(was)) {
    const found = wholeNumbers(text);
    const pair = name === "query" || (name === "beside" && text);
    return pair && found?.length !== 2 ? undefined : found;
  }
  if (was === null && text === "none") return null;
  return typeof was === "number" || was === null ? wholeNumber(text) : undefined;
}

/**
 * Reads what an address says; what is unknown or makes no sense is left out.
 * @param {string} hash with or without "#"
 * @returns {SomeState}
 */
export function fromHash(hash) {
  /** @type {Record<string, unknown>} */
  const found = {};
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [name, text = ""] = part.split("=", 2);
    const value = Object.hasOwn(DEFAULT_STATE, name) ? readField(name, safeDecode(text)) : undefined;
    if (value !== undefined) found[name] = value;
  }
  return /** @type {SomeState} */ (found);
}

/** @param {string} text @returns {string} */
function safeDecode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
