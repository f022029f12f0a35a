import assert from "node:assert/strict";
import { test } from "node:test";

import { createState, DEFAULT_STATE, fromHash, toHash } from "../../../src/convattn/viewer/static/js/state.js";

/** @typedef {import("../../../src/convattn/viewer/static/js/state.js").SomeState} SomeState */

test("listeners hear once, and only of what is other than before", () => {
  const state = createState({ layer: 2 });
  /** @type {string[][]} */
  const heard = [];
  state.subscribe((now, changed) => heard.push([String(now.layer), ...changed]));
  state.set({ layer: 2, query: [0, 0] });
  assert.deepEqual(heard, []);
  state.set({ layer: 3, query: [5, 7], head: 0 });
  assert.deepEqual(heard, [["3", "layer", "query"]]);
  assert.equal(state.get().layer, 3);
});

test("an address brings back the state it was made of", () => {
  /** @type {SomeState[]} */
  const cases = [
    {},
    { view: "learn", step: 3 },
    { query: [13, 7], layer: 5, head: 8, network: 1, image: 19 },
    { scale: "common", values: "scores", part: "content", average: true },
    { scale: 0.125, extent: "near", epoch: 11 },
    { compare: [1, 2], prefix: 0 },
    { ask: "move", controls: true, order: "neighbour 1 left", beside: [2, 3] },
    { moved: [0, 2, 8, -1.25, 0.0001, 6.65, 1, 0, 0, 0, 15, 1e-7] },
  ];
  for (const change of cases) {
    const state = { ...DEFAULT_STATE, ...change };
    assert.deepEqual({ ...DEFAULT_STATE, ...fromHash(`#${toHash(state)}`) }, state);
  }
});

test("an address says only what differs, also back to nothing", () => {
  assert.equal(toHash(DEFAULT_STATE), "");
  const defaults = { ...DEFAULT_STATE, compare: [1], query: /** @type {[number, number]} */ ([8, 8]) };
  assert.equal(toHash(defaults, defaults), "");
  const state = { ...defaults, compare: [], epoch: null };
  assert.deepEqual(fromHash(toHash(state, defaults)), { compare: [] });
});

test("an address has no spaces, at which a chat would cut it", () => {
  const state = { ...DEFAULT_STATE, order: "convolution 1 left (by construction)" };
  assert.equal(toHash(state), "order=convolution%201%20left%20(by%20construction)");
  assert.equal(fromHash(toHash(state)).order, state.order);
});

test("what makes no sense in an address is left out", () => {
  const hashes = [
    "layer=-1",
    "layer=x",
    "query=1",
    "query=1,b",
    "scale=0",
    "scale=Infinity",
    "scale=1e999",
    "part=all",
    "moved=0,2,8,-1.25,0.5",
    "moved=0,2,8,-1.25,0.5,",
    "moved=0,2.5,8,-1.25,0.5,1",
    "moved=0,-2,8,-1.25,0.5,1",
    "moved=0,2,8,NaN,0.5,1",
    "moved=0,2,8,1e5,0.5,1",
    "moved=0,2,8,1,Infinity,1",
    "moved=0,2,8,1,0,0",
    "moved=0,2,8,1,0,1e999",
    `moved=${Array(257).fill("0,0,0,0,0,1").join()}`,
  ];
  for (const hash of [
    ...hashes,
    "theme=dark",
    "constructor=1",
    "__proto__=1",
    "average=yes",
    "controls=maybe",
    "ask=why",
    "beside=1",
    "%",
    "layer=%E0%A4%A",
    "=&=&",
  ]) {
    assert.deepEqual(fromHash(hash), {}, hash);
  }
  assert.deepEqual(fromHash("#layer=2&nothing=3&query=4%2C5"), { layer: 2, query: [4, 5] });
});
