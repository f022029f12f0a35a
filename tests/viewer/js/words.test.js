import assert from "node:assert/strict";
import { test } from "node:test";

import { fixedText, numberText } from "../../../src/convattn/viewer/static/js/draw.js";
import {
  directionWords,
  headSentence,
  headWord,
  percent,
  reportUnitOf,
  shiftWords,
  statisticText,
  whyWords,
} from "../../../src/convattn/viewer/static/js/explore/words.js";

/** @typedef {import("../../../src/convattn/viewer/static/js/scene.js").SceneLayer} SceneLayer */

const LAYER = /** @type {SceneLayer} */ ({
  number: 2,
  keys: { grid: [5, 7], first: [0, 0], step: [1, 1] },
  prefix: /** @type {string[]} */ ([]),
});
const NUMBERS = { hardShare: 1, prefix: [], prefixShare: 0.25 };

test("a shift is said as one would", () => {
  assert.equal(shiftWords([-1, 0], "pixels"), "1.0 pixels up");
  assert.equal(shiftWords([1.25, -2], "cells", 2), "1.25 cells down and 2.00 to the left");
  assert.equal(shiftWords([0.04, -0.04], "pixels"), "at the query itself");
});

test("a head is said in a sentence, with its unit and its prefix tokens", () => {
  const numbers = { ...NUMBERS, shift: /** @type {[number, number]} */ ([-1, 0]), spread: 0.4, entropy: 0 };
  assert.equal(headSentence(LAYER, 2, numbers), "Head 3 of layer 2 looks 1.0 pixels up, spread 0.4 pixels");
  const far = { ...numbers, spread: 2 };
  assert.equal(headSentence(LAYER, 2, far), "Head 3 of layer 2 looks on average 1.0 pixels up, spread 2.0 pixels");
  const around = "Head 3 of layer 2 looks around the query, spread 2.0 pixels";
  assert.equal(headSentence(LAYER, 2, { ...far, shift: [0, 0] }), around);
  const wide = {
    ...LAYER,
    keys: { ...LAYER.keys, step: /** @type {[number, number]} */ ([16, 16]) },
    prefix: ["class"],
  };
  assert.equal(
    headSentence(wide, 0, numbers),
    "Head 1 of layer 2 looks 1.0 cells up, spread 0.4 cells and gives 25 % to the class token",
  );
  const token = { ...numbers, shift: null, entropy: Math.log(20) };
  assert.equal(headSentence(LAYER, 0, token), "Head 1 of layer 2 attends to 20 keys or so");
  assert.equal(headSentence(LAYER, 0, { ...token, entropy: 0 }), "Head 1 of layer 2 attends to 1 key or so");
});

test("a head has the word of its report, and of displacements alone that of its scores", () => {
  assert.deepEqual(
    [
      [-1, 0],
      [2, -3],
      [0, 0],
    ].map(([down, right]) => directionWords([down, right])),
    ["1 above", "2 below, 3 left", "itself"],
  );
  const weights = new Float32Array(35);
  weights.set([0.6, 0.4], 2 * 7 + 3); // of the query at row 2, column 4
  const rows = {
    layer: 0,
    query: /** @type {[number, number]} */ ([2, 4]),
    heads: 1,
    keyRows: 5,
    keyCols: 7,
    weights,
    prefix: new Float32Array(0),
  };
  const place = { first: [0, 0], step: [1, 1] };
  const own = /** @type {SceneLayer} */ (
    /** @type {unknown} */ ({ ...LAYER, place, attention: { kind: "position" }, statistics: null })
  );
  assert.equal(headWord(own, rows, 0), "convolution 1 left (by construction)");
  const told = { ...own, statistics: [/** @type {any} */ ({ verdict: "window" })] };
  assert.equal(headWord(told, rows, 0), "window");
  assert.equal(headWord(told, rows, 0, true), "convolution 1 left (by construction)", "it was moved since");
  assert.equal(headWord({ ...own, attention: /** @type {any} */ ({ kind: "maps" }) }, rows, 0), "");
  const known = (/** @type {number | number[]} */ value) => ({ value, error: null });
  const report = { position_score: known(0.734), hard_share: known(0.62), hard_shift: known([0, -1]) };
  assert.match(whyWords(report, 100), /^Why: on 100 images.* 73 % .* 62 % .*: 1 left\.$/);
  assert.match(whyWords(report, 4), /another word is possible/);
  const special = { ...report, prefix_share: known(0.67), verdict: /** @type {any} */ ("special tokens") };
  assert.match(
    whyWords(special, 100),
    /images, 67 % of its attention is on class and register tokens, and displacement .*, and 62/,
  );
  const row = { ...report, line_share: known(0.7), verdict: /** @type {any} */ ("row (by construction)") };
  assert.match(whyWords(row, 100), /70 % is in the query's own row/);
  const half = { ...report, side_share: known(0.8), verdict: /** @type {any} */ ("half-plane above") };
  assert.match(whyWords(half, 100), /80 % is on one side, and/);
  const unknown = { ...report, position_score: { value: null, error: null }, hard_share: { value: -0.002, error: 0 } };
  assert.match(whyWords(unknown, 1), /^Why: on 1 image, 0 % of its attention is at one displacement: 1 left\. On so/);
});

test("numbers are short, with a true minus sign", () => {
  assert.deepEqual(
    [0.12345, -2, 0, 1e-9, 123456, NaN, -Infinity].map((value) => numberText(value)),
    ["0.123", "−2", "0", "1.00e−9", "1.23e+5", "–", "−∞"],
  );
  assert.deepEqual(
    [-0.001, -1.005, 2].map((value) => fixedText(value)),
    ["0.00", "−1.00", "2.00"],
  );
  assert.deepEqual([0, 0.0123, 0.5, NaN].map(percent), ["0 %", "1.2 %", "50 %", "–"]);
});

test("a report counts in cells of queries, also where keys lie closer or farther apart", () => {
  /** @param {[number, number]} queries @param {[number, number]} keys */
  const unit = (queries, keys) =>
    reportUnitOf({ ...LAYER, place: { first: [0, 0], step: queries }, keys: { ...LAYER.keys, step: keys } });
  assert.deepEqual(
    [unit([1, 1], [1, 1]), unit([4, 4], [4, 4]), unit([2, 3], [1, 1]), unit([4, 4], [4, 8])],
    ["pixels", "cells", "cells of queries", "cells of queries"],
  );
});

test("numbers of a report have the unit of those of a query", () => {
  assert.equal(statisticText({ value: 0.0123, error: 0.001 }, "%"), "1.23 ± 0.10 %");
  assert.equal(statisticText({ value: 2, error: null }, "pixels"), "2.00 pixels");
  assert.equal(statisticText({ value: 0.5, error: 0.25 }, ""), "0.50 ± 0.25");
  assert.equal(
    statisticText({ value: [-1, 0], error: [0.5, 0.25] }, "cells"),
    "1.00 ± 0.50 cells up and 0.00 ± 0.25 to the right",
  );
  assert.equal(statisticText(undefined, "%"), "–");
  assert.equal(statisticText({ value: [-1, 0], error: [null, null] }, "cells"), "1.00 cells up");
  assert.equal(statisticText({ value: [null, null], error: [null, null] }, "cells"), "–");
});
