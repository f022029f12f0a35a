// Colours of maps: one ramp from paper to ink. In the light theme strong weights are dark, in the dark theme bright, and
// lightness falls or rises all the way, so that order can be read without hue.

/** @typedef {"light" | "dark"} Theme */
/** @typedef {[number, number, number]} Rgb */

/** Stops of the ramp, from weak to strong, in the light theme: paper, sea green, blue, ink. @type {Rgb[]} */
const LIGHT_STOPS = [
  [250, 250, 240],
  [230, 243, 200],
  [180, 222, 190],
  [110, 194, 190],
  [52, 158, 188],
  [36, 112, 170],
  [36, 66, 140],
  [16, 30, 92],
];

/** The same in the dark theme: night, blue, sea green, paper. @type {Rgb[]} */
const DARK_STOPS = [
  [18, 22, 38],
  [30, 44, 98],
  [34, 82, 150],
  [34, 124, 172],
  [60, 166, 182],
  [124, 202, 178],
  [196, 230, 170],
  [254, 252, 216],
];

/** What is drawn where a query cannot look: no value, so no colour of the ramp. @type {Record<Theme, Rgb>} */
const NOTHING = { light: [228, 228, 226], dark: [44, 46, 50] };

/**
 * Makes the 256 colours of a map.
 * @param {Theme} theme
 * @returns {Uint8ClampedArray} 256 × RGB
 */
export function ramp(theme) {
  const stops = theme === "dark" ? DARK_STOPS : LIGHT_STOPS;
  const made = new Uint8ClampedArray(256 * 3);
  for (let level = 0; level < 256; level++) {
    const place = (level / 255) * (stops.length - 1);
    const from = Math.min(Math.floor(place), stops.length - 2);
    for (let channel = 0; channel < 3; channel++) {
      const low = stops[from][channel];
      made[level * 3 + channel] = Math.round(low + (place - from) * (stops[from + 1][channel] - low));
    }
  }
  return made;
}

/**
 * Packs a colour into one 32-bit number, as the pixels of a canvas lie in memory: red first, opaque.
 * @param {ArrayLike<number>} colours  bytes
 * @param {number} [at]  where red stands
 */
export const packedColour = (colours, at = 0) =>
  ((255 << 24) | (colours[at + 2] << 16) | (colours[at + 1] << 8) | colours[at]) >>> 0;

/**
 * Packs the colours of a map; the last is that of nothing.
 * @param {Theme} theme
 * @returns {Uint32Array} 257 colours
 */
export function packedRamp(theme) {
  const colours = [...ramp(theme), ...NOTHING[theme]];
  return Uint32Array.from({ length: 257 }, (_, level) => packedColour(colours, 3 * level));
}

/**
 * Returns the level 0 … 255 of a value between two limits, 256 for no value.
 * @param {number} value
 * @param {number} low
 * @param {number} high
 * @returns {number}
 */
export function levelOf(value, low, high) {
  if (Number.isNaN(value)) return 256;
  if (!(value > low)) return 0;
  return value >= high ? 255 : Math.round((255 * (value - low)) / (high - low));
}
