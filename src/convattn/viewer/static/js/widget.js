/** @import { Transport } from "./remote.js" */

/**
 * The page in a notebook: a frame with the page, and messages to the kernel. This file is a module of its own; it runs in
 * the notebook, outside the frame, so that neither changes the other's style.
 * @typedef {object} WidgetModel  what a notebook gives to a widget
 * @property {(content: object, callbacks?: undefined, buffers?: ArrayBuffer[]) => void} send
 * @property {(event: string, listener: (content: any, buffers: DataView[]) => void) => void} on
 * @property {(event: string, listener: Function) => void} off
 * @property {(name: string) => any} get
 * @typedef {{text: string, bytes: ArrayBuffer}} Answer
 */

/** Milliseconds after which the kernel counts as away; a first image may take it long. */
const PATIENCE = 600_000;

/** Makes a function that asks the kernel, and what ends it. @param {WidgetModel} model */
export function openChannel(model) {
  /** @type {Map<string, {resolve: (answer: Answer) => void, reject: (error: Error) => void}>} */
  const waiting = new Map();
  const mark = Math.random().toString(36).slice(2); // an answer reaches every view of the widget
  let asked = 0;
  const listener = (/** @type {any} */ { id, error, text }, /** @type {DataView[]} */ buffers) => {
    const one = waiting.get(id);
    waiting.delete(id);
    if (error) one?.reject(new Error(error));
    else one?.resolve({ text, bytes: buffers.length ? bytesOfView(buffers[0]) : new ArrayBuffer(0) });
  };
  model.on("msg:custom", listener);
  const ask = (/** @type {object} */ content, /** @type {ArrayBuffer[]} */ buffers = []) =>
    /** @type {Promise<Answer>} */ (
      new Promise((resolve, reject) => {
        const id = `${mark}-${asked++}`;
        waiting.set(id, { resolve, reject });
        model.send({ id, ...content }, undefined, buffers);
        setTimeout(
          () => waiting.delete(id) && reject(new Error("the kernel does not answer; is it running?")),
          PATIENCE,
        );
      })
    );
  return { ask, close: () => model.off("msg:custom", listener) };
}

/** @param {DataView} view @returns {ArrayBuffer} */
function bytesOfView(view) {
  return /** @type {ArrayBuffer} */ (view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

/**
 * Shows the page in a cell's output. The copy of the page that stands below for those without a kernel is hidden.
 * @param {{model: WidgetModel, el: HTMLElement}} place
 * @returns {Promise<() => void>} what ends it
 */
async function render({ model, el }) {
  const { ask, close } = openChannel(model);
  const page = await ask({ kind: "page" });
  const frame = document.createElement("iframe");
  frame.title = "Attention maps";
  frame.style.cssText = "width: 100%; height: 80vh; border: 0; display: block";
  frame.srcdoc = page.text;
  /** @type {Transport} */
  const transport = {
    scene: page.bytes,
    rows: async (asked) => (await ask({ kind: "rows", asked })).bytes,
    again: async () => (await ask({ kind: "page" })).bytes,
    upload: async (file) => (await ask({ kind: "upload", name: file.name }, [await file.arrayBuffer()])).bytes,
  };
  const theme = document.body.dataset.jpThemeLight === "false" ? "dark" : "auto";
  frame.addEventListener("load", () => /** @type {any} */ (frame.contentWindow).convattnOpen(transport, { theme }));
  el.append(frame);
  const hidden = document.createElement("style");
  hidden.textContent = `[data-convattn-copy="${model.get("copy")}"] { display: none }`;
  el.append(hidden);
  return close;
}

export default { render };
