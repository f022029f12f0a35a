// The page: title, tabs, theme, and the address that brings back the view.

import { h } from "./dom.js";
import { mountExplore } from "./explore/explore.js";
import { createState, DEFAULT_STATE, fromHash, toHash } from "./state.js";

/** @typedef {import("./source.js").Source} Source */
/** @typedef {import("./state.js").SomeState} SomeState */
/** @typedef {import("./state.js").ViewState} ViewState */
/** @typedef {import("./colour.js").Theme} Theme */

/** Time after the last change at which the address follows, in ms: browsers allow few writes in a second. */
const ADDRESS_DELAY = 300;

/**
 * Returns what is shown first: the middle of the first image, where no border is in the way.
 * @param {Source} source
 * @returns {ViewState}
 */
function firstState({ scene }) {
  const { networks } = scene;
  const [rows, cols] = scene.tensors.get(scene.images[0].picture)?.shape ?? [1, 1];
  const compare = networks.map((_, number) => number).slice(1, 4);
  const [first] = networks;
  const large = first.layers.some(({ attention, grid }) => attention.kind === "position" && Math.max(...grid) > 20);
  const extent = large ? "near" : "whole"; // heads of displacements look nearby: on a large image they are but a dot
  return { ...DEFAULT_STATE, extent, query: [Math.floor(rows / 2), Math.floor(cols / 2)], compare };
}

/**
 * Shows a scene in an element.
 * @param {HTMLElement} root
 * @param {Source} source
 * @param {{view?: "explore" | "learn", state?: SomeState, theme?: "auto" | Theme, address?: boolean}} [options] address:
 *   whether the view is kept in the page's address, true for a page of its own and false within another
 * @returns {{destroy: () => void, state: () => ViewState}}
 */
export function mount(root, source, { view, state: given = {}, theme, address = true } = {}) {
  const defaults = firstState(source);
  const said = address ? fromHash(location.hash) : {};
  const options = { ...(view && { view }), ...(theme && { theme }) };
  const state = createState({ ...defaults, ...options, ...given, ...said });
  const night = matchMedia("(prefers-color-scheme: dark)");
  const themeNow = () => {
    const chosen = state.get().theme;
    return chosen === "auto" ? (night.matches ? "dark" : "light") : chosen;
  };

  const themes = h("select", {
    "aria-label": "Theme",
    onchange: () => state.set({ theme: /** @type {ViewState["theme"]} */ (themes.value) }),
  });
  for (const [value, text] of [
    ["auto", "As the system"],
    ["light", "Light"],
    ["dark", "Dark"],
  ])
    themes.append(h("option", { value }, text));
  const header = h(
    "header",
    { class: "page-head" },
    h("p", { class: "brand" }, "convattn"),
    h("h1", null, source.scene.title),
    h("label", { class: "control theme" }, h("span", null, "Theme"), themes),
  );
  const stage = h("main", { class: "stage" });
  root.classList.add("convattn");
  root.append(header, stage);

  const link = () => `${location.href.replace(/#.*/, "")}#${toHash(state.get(), defaults)}`;
  const explore = mountExplore(stage, source, state, { theme: themeNow, address: () => (address ? link() : null) });

  function dress() {
    root.dataset.theme = themeNow();
    themes.value = state.get().theme;
  }

  let writing = 0;
  function writeAddress() {
    try {
      const hash = toHash(state.get(), defaults);
      history.replaceState(null, "", hash ? `#${hash}` : "#");
    } catch {
      // A page within a page may have no address of its own; the view works without.
    }
  }

  const readAddress = () => state.set({ ...defaults, ...fromHash(location.hash) });
  const nightFell = () => {
    dress();
    explore.repaint();
  };
  const end = state.subscribe((_, changed) => {
    if (changed.has("theme")) nightFell();
    if (!address) return;
    clearTimeout(writing);
    writing = setTimeout(writeAddress, ADDRESS_DELAY);
  });
  night.addEventListener("change", nightFell);
  if (address) addEventListener("hashchange", readAddress);
  dress();

  return {
    state: () => state.get(),
    destroy() {
      end();
      clearTimeout(writing);
      night.removeEventListener("change", nightFell);
      removeEventListener("hashchange", readAddress);
      explore.destroy();
      root.replaceChildren();
    },
  };
}
