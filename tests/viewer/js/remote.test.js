import assert from "node:assert/strict";
import test from "node:test";

import { rowsAddress, serverSource } from "../../../src/convattn/viewer/static/js/remote.js";
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
/** A scene whose second image the reader added to the page. */
const SCENE = safetensorsFile(
  { queries: INDEX, keys: INDEX },
  {
    "convattn.scene": JSON.stringify({
      schema: 1,
      title: "",
      images: [
        { name: "a", label: null, picture: "a" },
        { name: "b", label: null, picture: "b", own: true },
      ],
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

/** Opens a server of the scene. @param {import("node:test").TestContext} t @param {() => Response} rows what it answers */
async function opened(t, rows) {
  /** @type {string[]} */
  const asked = [];
  t.mock.method(globalThis, "fetch", async (/** @type {URL} */ { pathname }) => {
    asked.push(pathname);
    return pathname === "/scene" ? new Response(SCENE) : rows();
  });
  return { made: await serverSource("http://127.0.0.1/"), asked };
}

test("rows from elsewhere are spread over the lattice of keys, with prefix tokens apart", async (t) => {
  const { made } = await opened(t, () => new Response(answer(0)));
  const [row] = await made.rows(ASKED);
  assert.deepEqual([row.layer, row.query, row.heads, row.keyRows, row.keyCols], [0, [0, 1], 2, 1, 3]);
  assert.deepEqual([...row.prefix], [0.5, 0]);
  assert.deepEqual([...row.weights].slice(3), [0, 0, 1]);
  assert.deepEqual([...row.weights].slice(0, 3), [0, Math.fround((51 * Math.fround(0.5)) / 255), 0]);
});

test("a refusal is told", async (t) => {
  const answers = [new Response("no such image", { status: 404 }), new Response(answer(0))];
  const { made, asked } = await opened(t, () => /** @type {Response} */ (answers.shift()));
  await assert.rejects(made.rows(ASKED), /no such image/);
  assert.equal((await made.rows(ASKED)).length, 1);
  assert.deepEqual(asked, ["/scene", "/rows", "/rows"]);
});

test("a server that is away is told", async (t) => {
  const { made } = await opened(t, () => {
    throw new TypeError("failed to fetch");
  });
  await assert.rejects(made.rows(ASKED), /the server does not answer; is it still running\?/);
});

test("the server is not asked about own images, which it does not have", async (t) => {
  const { made, asked } = await opened(t, () => new Response(answer(0)));
  assert.deepEqual(await made.rows({ ...ASKED, image: 1 }), []);
  assert.deepEqual(asked, ["/scene"]);
});

test("what is asked is written into the address", () => {
  const address = (/** @type {import("../../../src/convattn/viewer/static/js/rows.js").Query} */ query) =>
    rowsAddress("http://127.0.0.1/", { ...ASKED, query }).href;
  assert.equal(address([3, 4]), "http://127.0.0.1/rows?network=0&image=0&part=both&row=3&col=4");
  assert.equal(address({ prefix: 1 }), "http://127.0.0.1/rows?network=0&image=0&part=both&prefix=1");
});
