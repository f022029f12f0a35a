import assert from "node:assert/strict";
import { test } from "node:test";

import { withinScene } from "../../../src/convattn/viewer/static/js/explore/choices.js";
import { DEFAULT_STATE } from "../../../src/convattn/viewer/static/js/state.js";

/** @typedef {import("../../../src/convattn/viewer/static/js/scene.js").Scene} Scene */
/** @typedef {import("../../../src/convattn/viewer/static/js/state.js").SomeState} SomeState */

const MAPS = { kind: "maps", parts: ["both", "content"], position: { kind: "position" }, images: [0, 1] };
const ATTENTION = [
  { kind: "position" },
  { ...MAPS, images: [0, 1, "mean"] },
  { ...MAPS, parts: ["both"], position: null },
];
const SCENE = /** @type {Scene} */ (
  /** @type {unknown} */ ({
    images: [{ picture: "first" }, { picture: "second" }],
    networks: ATTENTION.map((attention) => ({ layers: [{ heads: 3, prefix: [], attention }] })),
    tensors: new Map([
      ["first", { shape: [5, 7, 3] }],
      ["second", { shape: [5, 7, 3] }],
    ]),
  })
);

/** @param {SomeState} wanted */
const within = (wanted) => withinScene(SCENE, { ...DEFAULT_STATE, ...wanted });

test("moved heads are kept where the network has such heads, within its keys", () => {
  const heads = { centres: "centres", sharpness: "sharpness" };
  const layers = [{ heads: 3, prefix: [], keys: { grid: [4, 6] }, attention: { kind: "position", heads } }];
  const scene = /** @type {Scene} */ (/** @type {unknown} */ ({ ...SCENE, networks: [{ layers }, ...SCENE.networks] }));
  const good = [0, 0, 2, 4, -6, 1];
  const others = [
    [0, 0, 3, 0, 0, 1],
    [0, 1, 0, 0, 0, 1],
    [9, 0, 0, 0, 0, 1],
    [0, 0, 0, 4.5, 0, 1],
    [2, 0, 0, 0, 0, 1],
  ];
  const moved = [...others, good].flat();
  assert.deepEqual(withinScene(scene, { ...DEFAULT_STATE, moved }).moved, good);
});

test("a part that the network does not show is left for both", () => {
  for (const part of /** @type {const} */ (["position", "content"]))
    assert.deepEqual(
      [0, 1, 2].map((network) => within({ network, part }).part),
      ["both", part, "both"],
    );
});

test("an average is shown where the page has one", () => {
  assert.deepEqual(
    [0, 1, 2].map((network) => within({ network, average: true }).average),
    [false, true, false],
  );
});

test("an image that the page does not have is the first, not another", () => {
  assert.deepEqual(
    [0, 1, 2, 20].map((image) => within({ image }).image),
    [0, 1, 0, 0],
  );
});
