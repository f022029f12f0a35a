// The page: title, tabs, and the address that brings back the view.

import { freshId, h, isBrowsers, para, reasonOf } from "./dom.js";
import { onTheme } from "./draw.js";
import { withinScene } from "./explore/choices.js";
import { mountExplore } from "./explore/explore.js";
import { headToShow } from "./first-head.js";
import { mountLearn } from "./learn/learn.js";
import { decodeBase64, openScene, pictureShape } from "./scene.js";
import { DEFAULT_STATE, createState, fromHash, toHash } from "./state.js";

/** @import { Scene } from "./scene.js" */
/** @import { SomeState, State, ViewState } from "./state.js" */

/** Time after the last change at which the address follows, in ms: browsers allow few writes in a second. */
const ADDRESS_DELAY = 300;

/**
 * Returns what is shown first: the middle of the first image, where no border is in the way.
 * @param {Scene} scene
 * @returns {ViewState}
 */
function firstState(scene) {
  const { networks } = scene;
  const [rows, cols] = pictureShape(scene, 0);
  const compare = networks.map((_, number) => number).slice(1, 4);
  const [first] = networks;
  const large = first.layers.some(({ attention, grid }) => attention.kind === "position" && Math.max(...grid) > 20);
  const extent = large ? "near" : "whole"; // heads of displacements look nearby: on a large image they are but a dot
  return {
    ...DEFAULT_STATE,
    ...headToShow(scene),
    compare,
    extent,
    query: [Math.floor(rows / 2), Math.floor(cols / 2)],
  };
}

/**
 * Shows a scene in the page: the tour first, or the view that the address asks for; in a notebook the network.
 * @param {Scene} scene
 * @param {boolean} address whether the view is kept in the page's address; false for a page within another
 */
function mount(scene, address) {
  const root = /** @type {HTMLElement} */ (document.getElementById("convattn"));
  const defaults = firstState(scene);
  /** @param {SomeState} said by the address, of whose links the first say no view and mean Explore */
  const stateOf = (said) => {
    const view = address && !Object.keys(said).length ? "learn" : "explore";
    return withinScene(scene, { ...defaults, view, ...said });
  };
  const state = createState(stateOf(address ? fromHash(location.hash) : {}));
  const header = h("header", { class: "page-head" }, para("brand", "convattn"), h("h1", null, scene.title));
  const stage = h("main", { class: "stage" });
  const views = createTabs(state, {
    learn: (panel) => mountLearn(panel, scene, state),
    explore: (panel) => mountExplore(panel, scene, state, () => (address ? link() : null)),
  });
  root.classList.add("convattn");
  stage.append(...views.panels);
  header.append(views.tabs);
  root.replaceChildren(header, stage);

  function hashNow() {
    const { view } = state.get();
    return [`#view=${view}`, toHash({ ...state.get(), view: defaults.view }, defaults)].filter(Boolean).join("&");
  }
  const link = () => location.href.replace(/#.*/, "") + hashNow();

  let writing = 0;
  let known = location.hash; // last read or written here
  function writeAddress() {
    if (location.hash !== known) return; // a link was followed meanwhile: its hashchange comes, and wins
    try {
      history.replaceState(null, "", hashNow());
      known = location.hash;
    } catch {
      // A page within a page may have no address of its own; the view works without.
    }
  }

  state.subscribe((_, changed) => {
    if (changed.has("view")) views.open();
    if (!address) return;
    clearTimeout(writing);
    writing = window.setTimeout(writeAddress, ADDRESS_DELAY);
  });
  onTheme(views.repaint);
  function readAddress() {
    known = location.hash;
    state.set(stateOf(fromHash(known)));
  }
  if (address) addEventListener("hashchange", readAddress);
  root.addEventListener("click", (event) => {
    const link = /** @type {Element} */ (event.target).closest('a[href^="#"]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab or window is asked for
    event.preventDefault(); // a page within another has no address to follow it by
    const hash = link.getAttribute("href") ?? "";
    if (address) {
      history.pushState(null, "", hash); // so that the browser goes back to what was shown
      known = location.hash;
    }
    state.set(stateOf(fromHash(hash)));
    scrollTo(0, 0);
  });
  views.open();
}

/** @typedef {"explore" | "learn"} ViewName */
/** @typedef {{repaint: () => void}} MountedView */

/**
 * Makes the tabs of the page; a view is made when it is first opened.
 * @param {State} state
 * @param {Record<ViewName, (panel: HTMLElement) => MountedView>} makers
 */
function createTabs(state, makers) {
  const names = /** @type {ViewName[]} */ (Object.keys(makers));
  /** @type {Map<ViewName, MountedView>} */
  const made = new Map();
  const ids = names.map((name) => freshId(name));
  const panels = names.map((_, at) => h("div", { role: "tabpanel", id: ids[at], "aria-labelledby": `${ids[at]}-tab` }));
  const buttons = names.map((name, at) =>
    h(
      "button",
      {
        role: "tab",
        id: `${ids[at]}-tab`,
        "aria-controls": ids[at],
        onclick: () => state.set({ view: name }),
      },
      name[0].toUpperCase() + name.slice(1),
    ),
  );
  const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" }, ...buttons);
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || isBrowsers(event)) return;
    const at = (names.indexOf(state.get().view) + step + names.length) % names.length;
    state.set({ view: names[at] });
    buttons[at].focus();
  });
  return {
    tabs,
    panels,
    open() {
      const { view } = state.get();
      const isLost = panels.some((panel, at) => names[at] !== view && panel.contains(document.activeElement));
      for (const [at, name] of names.entries()) {
        const open = name === view;
        panels[at].hidden = !open;
        buttons[at].setAttribute("aria-selected", String(open));
        buttons[at].tabIndex = open ? 0 : -1;
        if (open && !made.has(name)) made.set(name, makers[name](panels[at]));
      }
      if (!isLost) return; // the focus is still in sight
      buttons[names.indexOf(view)].focus();
      scrollTo(0, 0);
    },
    repaint: () => made.forEach((view) => view.repaint()),
  };
}

/** Opens the scene inside the page, or says why it cannot. */
export function openPage() {
  try {
    const scene = openScene(decodeBase64(document.getElementById("convattn-scene")?.textContent ?? ""));
    mount(scene, location.protocol !== "about:"); // the page in a frame of a notebook has no address of its own
  } catch (error) {
    document.getElementById("convattn")?.replaceChildren(`This page cannot be shown: ${reasonOf(error)}`);
    throw error;
  }
}
