import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { OVERLAY, levelOf, packedRamp, ramp } from "../../../src/convattn/viewer/static/js/draw.js";

/** @typedef {import("../../../src/convattn/viewer/static/js/draw.js").Theme} Theme */

const THEMES = /** @type {Theme[]} */ (["light", "dark"]);

/**
 * What each kind of dichromat sees of linear light (Viénot, Brettel, Mollon, 1999; Brettel et al. for blue).
 * @type {Record<string, number[][]>}
 */
const DICHROMATS = {
  protan: [
    [0.11238, 0.88762, 0],
    [0.11238, 0.88762, 0],
    [0.00401, -0.00401, 1],
  ],
  deutan: [
    [0.29275, 0.70725, 0],
    [0.29275, 0.70725, 0],
    [-0.02234, 0.02234, 1],
  ],
  tritan: [
    [1, 0.1446, -0.1446],
    [0, 0.8592, 0.1408],
    [0, 0.8592, 0.1408],
  ],
};

/** @param {Theme} theme @returns {number[][]} */
function colours(theme) {
  const made = ramp(theme);
  return Array.from({ length: 256 }, (_, level) => Array.from(made.subarray(level * 3, level * 3 + 3)));
}

/** @param {number} byte */
const linear = (byte) => (byte / 255 <= 0.04045 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4);

/** @param {number[]} rgb @returns {number} the relative luminance of WCAG 2: 0 for black, 1 for white */
const luminance = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);

/** @param {number[]} one @param {number[]} other @returns {number} the contrast of WCAG 2, 1 … 21 */
function contrast(one, other) {
  const [dark, bright] = [luminance(one), luminance(other)].sort((first, second) => first - second);
  return (bright + 0.05) / (dark + 0.05);
}

/** @param {number[][]} matrix @param {number[]} rgb @returns {number} the luminance that is left */
function luminanceSeen(matrix, rgb) {
  const light = rgb.map(linear);
  const seen = matrix.map((row) => row.reduce((sum, weight, at) => sum + weight * light[at], 0));
  return 0.2126 * seen[0] + 0.7152 * seen[1] + 0.0722 * seen[2];
}

for (const theme of THEMES) {
  const sign = theme === "light" ? -1 : 1;

  test(`${theme}: stronger weights are ${sign > 0 ? "brighter" : "darker"}, level by level`, () => {
    const steps = colours(theme).map(luminance);
    for (let level = 1; level < 256; level++)
      assert.ok(sign * (steps[level] - steps[level - 1]) >= 0, `level ${level}`);
    assert.ok(Math.abs(steps[255] - steps[0]) > 0.8);
  });

  test(`${theme}: also for those who see no red, no green or no blue`, () => {
    for (const [name, matrix] of Object.entries(DICHROMATS)) {
      const seen = colours(theme).map((rgb) => luminanceSeen(matrix, rgb));
      // Eight levels apart, so that rounding to bytes does not count.
      for (let level = 8; level < 256; level++)
        assert.ok(sign * (seen[level] - seen[level - 8]) > 0, `${name} ${level}`);
    }
  });

  test(`${theme}: colours of heads stand out of the page`, () => {
    const style = readFileSync(new URL("../../../src/convattn/viewer/static/css/page.css", import.meta.url), "utf8");
    const block = style.split(/^ *\.convattn \{/m)[theme === "light" ? 1 : 2];
    const bytes = (/** @type {string} */ name) => {
      const hex = block.match(new RegExp(`--${name}: #(\\w{6});`))?.[1] ?? assert.fail(name);
      return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
    };
    const paper = bytes("paper");
    for (let head = 0; head < 9; head++) assert.ok(contrast(bytes(`head-${head}`), paper) >= 3, `head ${head}`);
    for (const text of ["ink", "soft", "accent"]) assert.ok(contrast(bytes(text), paper) >= 4.5, text);
  });

  test(`${theme}: pixels hold the ramp, opaque`, () => {
    const bytes = new Uint8Array(packedRamp(theme).buffer);
    assert.deepEqual([...bytes.subarray(0, 3)], colours(theme)[0]);
    assert.deepEqual([...bytes.subarray(255 * 4, 255 * 4 + 4)], [...colours(theme)[255], 255]);
    assert.equal(bytes.length, 257 * 4);
  });
}

test("levels of weights are those of their square roots, of scores even; no value has its own", () => {
  const values = [-1, 0, 0.04, 0.36, 1, 9, NaN, Infinity, -Infinity];
  assert.deepEqual(
    values.map((value) => levelOf(value, 0, 1)),
    [0, 0, 51, 153, 255, 255, 256, 255, 0],
  );
  assert.deepEqual(
    [-9, -2, -1, 0].map((value) => levelOf(value, -2, 0)),
    [0, 0, 128, 255],
  );
});

test("a map over a photograph is told from it on dark and on light, and leaves it where there is no weight", () => {
  const bytes = new Uint8Array(OVERLAY.buffer);
  // A photograph is grey below it, so that only the map can make blue differ from red.
  const blue = Array.from({ length: 256 }, (_, level) => {
    const [red, , over, alpha] = bytes.subarray(4 * level, 4 * level + 4);
    return ((over - red) * alpha) / 255;
  });
  assert.equal(blue[0], 0);
  assert.ok(blue[255] > 200 && blue[64] > 40, `${blue[64]}, ${blue[255]}`);
  for (let level = 1; level < 256; level++) assert.ok(blue[level] >= blue[level - 1], `level ${level}`);
});

test("contrast is that of WCAG", () => {
  assert.equal(contrast([0, 0, 0], [255, 255, 255]), 21);
  assert.equal(contrast([119, 119, 119], [255, 255, 255]).toFixed(2), "4.48");
});
