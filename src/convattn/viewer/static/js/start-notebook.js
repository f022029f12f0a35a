// The page in a frame of a notebook, which gives it what to show.

import { mount } from "./main.js";
import { remoteSource } from "./remote.js";

/** @typedef {import("./remote.js").Transport} Transport */

/** Lets the notebook open the page, once, as soon as the frame has loaded. */
export function awaitNotebook() {
  const root = /** @type {HTMLElement} */ (document.getElementById("convattn"));
  const open = (/** @type {Transport} */ transport, /** @type {{theme: "auto" | "dark"}} */ { theme }) => {
    root.replaceChildren();
    mount(root, remoteSource(transport), { theme, address: false });
  };
  Object.assign(window, { convattnOpen: open });
}
