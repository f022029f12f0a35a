// Colours of maps: one ramp from paper to ink. In the light theme strong weights are dark, in the dark theme bright, and
// lightness falls or rises all the way, so that order can be read without hue.

import { clamp } from "./numbers.js";

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

/** Makes the 256 colours of a map. @param {Theme} theme @returns {Uint8ClampedArray} 256 × RGB */
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
 * Packs a colour into one 32-bit number, as the pixels of a canvas lie in memory: red first.
 * @param {ArrayLike<number>} colours  bytes
 * @param {number} [at]  where red stands
 * @param {number} [alpha]
 */
export const packedColour = (colours, at = 0, alpha = 255) =>
  ((alpha << 24) | (colours[at + 2] << 16) | (colours[at + 1] << 8) | colours[at]) >>> 0;

/**
 * Packs the colours of a map; the last is that of nothing.
 * @param {Theme} theme
 * @returns {Uint32Array} 257 colours
 */
export function packedRamp(theme) {
  const colours = [...ramp(theme), ...NOTHING[theme]];
  return Uint32Array.from({ length: 257 }, (_, level) => packedColour(colours, 3 * level));
}

/** What lies over a photograph: a blue that is seen on dark and on light, the more of it the stronger a weight is. */
export const OVERLAY = Uint32Array.from({ length: 257 }, (_, level) =>
  level > 255 ? packedColour([120, 120, 120], 0, 200) : packedColour([0, 128 + level / 4, 230], 0, 0.94 * level),
);

/**
 * Returns the level 0 … 255 of a value between two limits, 256 for no value. Weights, from 0 on, have the levels of
 * their square roots, as on the page of an analysis: weak ones are seen.
 * @param {number} value
 * @param {number} low
 * @param {number} high
 * @returns {number}
 */
export function levelOf(value, low, high) {
  if (Number.isNaN(value)) return 256;
  if (!(value > low)) return 0;
  const share = Math.min((value - low) / (high - low), 1);
  return Math.round(255 * (low < 0 ? share : Math.sqrt(share)));
}

const night = globalThis.matchMedia?.("(prefers-color-scheme: dark)");

/** @returns {Theme} that of the system */
const themeNow = () => (night?.matches ? "dark" : "light");

/** Repaints when the theme changes. @param {() => void} repaint */
export const onTheme = (repaint) => night?.addEventListener("change", repaint);

// Maps and pictures on canvases: one ImageData for each, painted cell by cell, enlarged by the style sheet.

const RAMPS = { light: packedRamp("light"), dark: packedRamp("dark") };

/** @param {HTMLCanvasElement} canvas @returns {CanvasRenderingContext2D} */
export function contextOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** What lies on a canvas. @type {WeakMap<HTMLCanvasElement, {image: ImageData, cells: Uint32Array}>} */
const drawnCells = new WeakMap();

/**
 * Draws cells: one pixel of the canvas for each. A canvas that would not change is left alone: no frame pays for it.
 * @param {HTMLCanvasElement} canvas
 * @param {number} rows
 * @param {number} cols
 * @param {(cell: number) => number} colour  a packed one for each cell
 * @returns {boolean} whether it changed
 */
export function drawCells(canvas, rows, cols, colour) {
  let drawn = drawnCells.get(canvas);
  let changed = drawn?.image.width !== cols || drawn.image.height !== rows;
  if (!drawn || changed) {
    [canvas.width, canvas.height] = [cols, rows];
    const image = new ImageData(cols, rows);
    drawnCells.set(canvas, (drawn = { image, cells: new Uint32Array(image.data.buffer) }));
  }
  const { cells, image } = drawn;
  for (let cell = 0; cell < cells.length; cell++) {
    const wanted = colour(cell);
    if (cells[cell] === wanted) continue;
    cells[cell] = wanted;
    changed = true;
  }
  if (changed) contextOf(canvas).putImageData(image, 0, 0);
  return changed;
}

/**
 * Draws a map.
 * @param {HTMLCanvasElement} canvas
 * @param {ArrayLike<number>} values rows × cols, NaN for none
 * @param {{rows: number, cols: number, low: number, high: number, colours?: Uint32Array}} how
 * @returns {boolean} whether it changed
 */
export function drawMap(canvas, values, { rows, cols, low, high, colours = RAMPS[themeNow()] }) {
  return drawCells(canvas, rows, cols, (cell) => colours[levelOf(values[cell], low, high)]);
}

/**
 * Draws a picture of bytes, rows × cols × 3.
 * @param {HTMLCanvasElement} canvas
 * @param {ArrayLike<number>} bytes
 * @param {number} rows
 * @param {number} cols
 */
export function drawPicture(canvas, bytes, rows, cols) {
  drawCells(canvas, rows, cols, (cell) => packedColour(bytes, 3 * cell));
}

/**
 * Draws the ramp itself from weak to strong, for a colour bar.
 * @param {HTMLCanvasElement} canvas
 * @param {Uint32Array} [colours]
 */
export function drawRamp(canvas, colours = RAMPS[themeNow()]) {
  drawCells(canvas, 1, 256, (level) => colours[level]);
}

/**
 * Draws bars that rise from the bottom, one for each share: what prefix tokens get.
 * @param {HTMLCanvasElement} canvas
 * @param {ArrayLike<number>} shares 0 … 1
 * @param {number} [height]
 * @returns {boolean} whether they changed
 */
export function drawBars(canvas, shares, height = 32) {
  const count = shares.length;
  const values = new Float32Array(count * 3 * height).fill(NaN);
  for (let token = 0; token < count; token++) {
    const top = height - Math.round(clamp(shares[token], 0, 1) * height);
    for (let row = 0; row < height; row++) {
      for (let col = 0; col < 2; col++) values[row * count * 3 + token * 3 + col] = row >= top ? 1 : 0;
    }
  }
  return drawMap(canvas, values, { rows: height, cols: count * 3, low: 0, high: 1 });
}

/**
 * Writes a number for people: three figures, no more decimals than tell anything, a true minus sign.
 * @param {number} value
 * @param {number} [figures]
 * @returns {string}
 */
export function numberText(value, figures = 3) {
  if (Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text =
    size !== 0 && (size < 0.001 || size >= 1e5)
      ? value.toExponential(figures - 1)
      : String(Number(value.toPrecision(figures)));
  return text.replaceAll("-", "−");
}

/**
 * Writes a number with a fixed count of decimals and a true minus sign; no minus zero.
 * @param {number} value
 * @param {number} [decimals]
 * @returns {string}
 */
export function fixedText(value, decimals = 2) {
  if (!Number.isFinite(value)) return numberText(value);
  const text = value.toFixed(decimals);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}
