import assert from "node:assert/strict";
import { test } from "node:test";

import { addPicture, takesPictures } from "../../../src/convattn/viewer/static/js/rows.js";
import { decodeBase64, openScene } from "../../../src/convattn/viewer/static/js/scene.js";
import { safetensorsFile } from "./files.js";

/** @param {...[number, number]} sizes of the networks, which all run in the page; the scene's picture is of 5 × 7 */
function openedScene(...sizes) {
  const networks = sizes.map(([rows, cols]) => ({
    layers: [],
    program: [],
    input: { rows, cols, mean: [0], std: [1] },
  }));
  const scene = { schema: 1, title: "", images: [{ name: "", label: null, picture: "picture" }], networks };
  const picture = { dtype: /** @type {const} */ ("U8"), shape: [5, 7, 3], values: Array(5 * 7 * 3).fill(0) };
  return openScene(safetensorsFile({ picture }, { "convattn.scene": JSON.stringify(scene) }));
}

/** @param {import("node:test").TestContext} t @returns {unknown[][]} what was drawn, on a canvas that holds nothing */
function withoutBrowser(t) {
  /** @type {unknown[][]} */
  const drawn = [];
  const context = {
    fillRect() {},
    drawImage: (/** @type {unknown[]} */ ..._drawn) => void drawn.push(_drawn.slice(1)),
    getImageData: (/** @type {number[]} */ ...[, , cols, rows]) => ({ data: new Uint8ClampedArray(rows * cols * 4) }),
  };
  const bitmap = { width: 90, height: 30, close() {} };
  Object.assign(globalThis, {
    createImageBitmap: async () => bitmap,
    document: { createElement: () => ({ getContext: () => context }) },
  });
  t.after(() => ["createImageBitmap", "document"].forEach((name) => Reflect.deleteProperty(globalThis, name)));
  return drawn;
}

test("the middle of an own picture is resized to the scene's pictures, whatever the first network takes", async (t) => {
  const drawn = withoutBrowser(t);
  const scene = openedScene([11, 13], [5, 7]);
  assert.ok(takesPictures(scene));
  assert.equal(await addPicture(scene, new File([], "own.png")), 1);
  assert.deepEqual(drawn, [[24, 0, 42, 30, 0, 0, 7, 5]]); // of 90 x 30
  assert.deepEqual(scene.tensors.get(scene.images[1].picture)?.shape, [5, 7, 3]);
});

test("no own picture is taken where no network runs on pictures of the scene's size", () => {
  assert.ok(!takesPictures(openedScene([11, 13])));
});

test("a scene inside a page is decoded quickly: a page of 54 MB opened after half a minute", () => {
  const bytes = Uint8Array.from({ length: 1_000_000 }, (_, at) => (at * 7) % 256);
  const text = Buffer.from(bytes).toString("base64");
  /** @param {() => void} run @returns {number} time of the processor, in µs */
  const cost = (run) => {
    const before = process.cpuUsage();
    run();
    return process.cpuUsage(before).user;
  };
  const slow = cost(() => void Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
  const quick = cost(() => assert.ok(Buffer.from(decodeBase64(text)).equals(bytes)));
  assert.ok(quick < slow / 4, `${quick} µs of ${slow}`);
});
