// Maps and pictures on canvases: one ImageData for each, painted cell by cell, enlarged by the style sheet.

import { levelOf, packedRamp } from "./colour.js";

/** @typedef {import("./colour.js").Theme} Theme */

/** @type {Map<Theme, Uint32Array>} */
const packedRamps = new Map();

/** @param {Theme} theme @returns {Uint32Array} */
function packedRampOf(theme) {
  const known = packedRamps.get(theme);
  if (known) return known;
  const made = packedRamp(theme);
  packedRamps.set(theme, made);
  return made;
}

/** @param {HTMLCanvasElement} canvas @returns {CanvasRenderingContext2D} */
export function contextOf(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/**
 * Draws cells: one pixel of the canvas for each.
 * @param {HTMLCanvasElement} canvas
 * @param {number} rows
 * @param {number} cols
 * @param {(pixels: Uint8ClampedArray) => void} paint writes RGBA
 */
export function drawCells(canvas, rows, cols, paint) {
  if (canvas.width !== cols) canvas.width = cols;
  if (canvas.height !== rows) canvas.height = rows;
  const image = contextOf(canvas).createImageData(cols, rows);
  paint(image.data);
  contextOf(canvas).putImageData(image, 0, 0);
}

/**
 * Draws a map.
 * @param {HTMLCanvasElement} canvas
 * @param {ArrayLike<number>} values rows × cols, NaN for none
 * @param {{rows: number, cols: number, low: number, high: number, theme: Theme}} how
 */
export function drawMap(canvas, values, { rows, cols, low, high, theme }) {
  const colours = packedRampOf(theme);
  drawCells(canvas, rows, cols, ({ buffer }) => {
    const out = new Uint32Array(buffer);
    for (let cell = 0; cell < out.length; cell++) out[cell] = colours[levelOf(values[cell], low, high)];
  });
}

/**
 * Draws a picture of bytes, rows × cols × 3.
 * @param {HTMLCanvasElement} canvas
 * @param {ArrayLike<number>} bytes
 * @param {number} rows
 * @param {number} cols
 */
export function drawPicture(canvas, bytes, rows, cols) {
  drawCells(canvas, rows, cols, (pixels) => {
    for (let at = 0; at < pixels.length; at++) {
      pixels[at] = at % 4 === 3 ? 255 : bytes[Math.floor(at / 4) * 3 + (at % 4)];
    }
  });
}

/**
 * Draws the ramp itself from weak to strong, for a colour bar.
 * @param {HTMLCanvasElement} canvas
 * @param {Theme} theme
 */
export function drawRamp(canvas, theme) {
  const values = Float32Array.from({ length: 256 }, (_, level) => level);
  drawMap(canvas, values, { rows: 1, cols: 256, low: 0, high: 255, theme });
}

/**
 * Draws bars that rise from the bottom, one for each share: what prefix tokens get.
 * @param {HTMLCanvasElement} canvas
 * @param {ArrayLike<number>} shares 0 … 1
 * @param {{bar: Theme, height?: number}} how
 */
export function drawBars(canvas, shares, { bar, height = 32 }) {
  const count = shares.length;
  const values = new Float32Array(count * 3 * height).fill(NaN);
  for (let token = 0; token < count; token++) {
    const top = height - Math.round(Math.min(Math.max(shares[token], 0), 1) * height);
    for (let row = 0; row < height; row++) {
      for (let col = 0; col < 2; col++) values[row * count * 3 + token * 3 + col] = row >= top ? 1 : 0;
    }
  }
  drawMap(canvas, values, { rows: height, cols: count * 3, low: 0, high: 1, theme: bar });
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
