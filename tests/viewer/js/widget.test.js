import assert from "node:assert/strict";
import test from "node:test";

import { openChannel } from "../../../src/convattn/viewer/static/js/widget.js";

test("two views of one widget do not take each other's answers", async () => {
  /** @type {((content: any, buffers: DataView[]) => void)[]} */
  const listeners = [];
  /** @type {any[]} */
  const sent = [];
  const model = {
    send: (/** @type {object} */ content) => void sent.push(content),
    on: (/** @type {string} */ _, /** @type {(content: any, buffers: DataView[]) => void} */ listener) =>
      void listeners.push(listener),
    off: () => {},
    get: () => "",
  };
  const [one, other] = [openChannel(model), openChannel(model)];
  test.mock.timers.enable({ apis: ["setTimeout"] });
  const asked = [one.ask({ kind: "a" }), other.ask({ kind: "b" })];
  for (const { id, kind } of sent.reverse()) for (const listener of listeners) listener({ id, text: kind }, []);
  assert.deepEqual(
    (await Promise.all(asked)).map(({ text }) => text),
    ["a", "b"],
  );
});
