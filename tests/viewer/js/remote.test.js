import assert from "node:assert/strict";
import test from "node:test";

import { remoteSource, rowsFields, withFields } from "../../../src/convattn/viewer/static/js/remote.js";
import { safetensorsFile } from "./files.js";

const LAYER = {
  name: "blocks.0",
  kind: "Attention",
  pattern: "global",
  heads: 2,
  grid: [1, 3],
  normalised: true,
  place: { first: [0, 0], step: [1, 1] },
  keys: { grid: [1, 3], first: [0, 0], step: [1, 1] },
  prefix: ["class"],
  sentence: null,
  statistics: null,
  attention: {
    kind: "maps",
    parts: ["both"],
    position: null,
    queries: "queries",
    keys: "keys",
    allowed: null,
    signed: false,
    stored: false,
    images: [0],
  },
};
const INDEX = { dtype: /** @type {const} */ ("I32"), shape: [1, 4], values: [-1, 0, 1, 2] };
/** @param {string[]} names of the images */
const sceneOf = (names) =>
  safetensorsFile(
    {
      queries: INDEX,
      keys: INDEX,
      ...Object.fromEntries(names.map((name) => [name, { dtype: "U8", shape: [1, 1, 3], values: [4, 5, 6] }])),
    },
    {
      "convattn.scene": JSON.stringify({
        schema: 1,
        title: "",
        images: names.map((name) => ({ name, label: null, picture: name })),
        networks: [
          {
            name: "n",
            title: "",
            note: "",
            classes: null,
            input: null,
            program: null,
            layers: [LAYER],
            timeline: null,
          },
        ],
      }),
    },
  );
const SCENE = sceneOf(["a"]);
const LATER = sceneOf(["a", "of another page", "of a third", "b"]);
const ASKED = /** @type {const} */ ({
  network: 0,
  image: 0,
  query: /** @type {[number, number]} */ ([0, 1]),
  part: "both",
});

/** @param {number} level */
function answer(level) {
  return safetensorsFile(
    {
      "0/levels": { dtype: "U8", shape: [2, 4], values: [255, 0, 51, 0, level, 0, 0, 255] },
      "0/scales": { dtype: "F32", shape: [2], values: [0.5, 1] },
    },
    {},
  );
}

/** @param {() => ArrayBuffer | Promise<ArrayBuffer>} rows @param {number} [index] of the next picture */
function source(rows, index = 1) {
  const counted = { calls: 0 };
  const transport = {
    scene: SCENE,
    rows: async () => {
      counted.calls++;
      return rows();
    },
    again: async () => LATER,
    upload: async () =>
      safetensorsFile(
        { picture: { dtype: "U8", shape: [1, 1, 3], values: [1, 2, 3] } },
        {
          "convattn.image": JSON.stringify({ index, image: { name: "b", label: null, picture: `pictures/${index}` } }),
        },
      ),
  };
  return { made: remoteSource(transport), counted };
}

test("rows from elsewhere are spread over the lattice of keys, with prefix tokens apart", async () => {
  const [row] = await source(() => answer(0)).made.rows(ASKED);
  assert.deepEqual([row.layer, row.query, row.heads, row.keyRows, row.keyCols], [0, [0, 1], 2, 1, 3]);
  assert.deepEqual([...row.prefix], [0.5, 0]);
  assert.deepEqual([...row.weights].slice(3), [0, 0, 1]);
  assert.deepEqual([...row.weights].slice(0, 3), [0, Math.fround((51 * Math.fround(0.5)) / 255), 0]);
});

test("a refusal is told", async () => {
  const answers = [() => Promise.reject(new Error("away")), () => answer(0)];
  const { made, counted } = source(() => /** @type {() => ArrayBuffer} */ (answers.shift())());
  await assert.rejects(made.rows(ASKED), /away/);
  assert.equal((await made.rows(ASKED)).length, 1);
  assert.equal(counted.calls, 2);
});

test("an uploaded picture joins the scene", async () => {
  const { made } = source(() => answer(0));
  assert.equal(await made.upload?.(new File(["x"], "b.png")), 1);
  assert.equal(made.scene.images[1].name, "b");
  assert.deepEqual([...(made.scene.tensors.get("pictures/1")?.data ?? [])], [1, 2, 3]);
});

test("pictures that other pages have sent come with one's own", async () => {
  const { made } = source(() => answer(0), 3);
  assert.equal(await made.upload?.(new File(["x"], "b.png")), 3);
  assert.deepEqual(
    made.scene.images.map(({ name }) => name),
    ["a", "of another page", "of a third", "b"],
  );
  assert.deepEqual([...(made.scene.tensors.get("of a third")?.data ?? [])], [4, 5, 6]);
  assert.deepEqual([...(made.scene.tensors.get("pictures/3")?.data ?? [])], [1, 2, 3]);
});

test("what is asked is written into the address", () => {
  const address = (/** @type {import("../../../src/convattn/viewer/static/js/rows.js").Query} */ query) =>
    withFields(new URL("http://127.0.0.1/rows"), rowsFields({ ...ASKED, query })).search;
  assert.equal(address([3, 4]), "?network=0&image=0&part=both&row=3&col=4");
  assert.equal(address({ prefix: 1 }), "?network=0&image=0&part=both&prefix=1");
});
