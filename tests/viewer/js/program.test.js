import assert from "node:assert/strict";
import { test } from "node:test";
import { normalisePicture } from "../../../src/convattn/viewer/static/js/program.js";

test("a network of one channel sees the lightness of a picture", () => {
  const picture = Uint8Array.of(10, 200, 90, 7, 7, 7, 255, 0, 0, 255, 255, 255);
  const { data } = normalisePicture(picture, { rows: 2, cols: 2, mean: [0], std: [1] });
  assert.deepEqual([...data], [...Float32Array.of(131 / 255, 7 / 255, 76 / 255, 1)]);
});
