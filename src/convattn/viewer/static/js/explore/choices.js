// What is shown, and how: the states that a scene can show, the controls above the maps, and the images.

import {
  createSegments,
  div,
  freshId,
  h,
  keepChildren,
  keyTarget,
  para,
  reasonOf,
  say,
  setProp,
  setProps,
  span,
} from "../dom.js";
import { drawRamp, numberText } from "../draw.js";
import { drawImage } from "./field.js";
import { addPicture, takesPictures } from "../rows.js";
import { nearestInside, pictureShape, positionOf } from "../scene.js";
import { readMoved, writeMoved } from "../state.js";

/** @import { Model } from "./model.js" */
/** @import { Scene, SceneLayer } from "../scene.js" */
/** @import { MovedHead, ViewState } from "../state.js" */

/**
 * Keeps a state within a scene: what the scene does not have is replaced by what it has.
 * @param {Scene} scene
 * @param {ViewState} state
 * @returns {ViewState}
 */
export function withinScene(scene, state) {
  const below = (/** @type {number} */ value, /** @type {number} */ count) => Math.min(value, Math.max(count - 1, 0));
  const network = below(state.network, scene.networks.length);
  const { layers } = scene.networks[network];
  const layer = below(state.layer, layers.length);
  const image = scene.images[state.image] ? state.image : 0;
  const part = whyNoPart(layers, state.part) ? "both" : state.part;
  const [rows, cols] = pictureShape(scene, image);
  return {
    ...state,
    network,
    layer,
    image,
    head: below(state.head, layers[layer].heads),
    query: [below(state.query[0], rows), below(state.query[1], cols)],
    moved: writeMoved(readMoved(state.moved).filter((head) => canBeMoved(scene, head))),
    compare: state.compare.filter((other) => other < scene.networks.length),
    part,
    average: state.average && !whyNoAverage(layers),
    prefix: state.prefix !== null && layers[layer].prefix[state.prefix] === undefined ? null : state.prefix,
    beside: state.beside[1] < (layers[state.beside[0]]?.heads ?? 0) ? state.beside : [],
    // what only they show or put back is not left without them
    controls:
      state.controls || state.epoch !== null || state.values !== "weights" || state.scale !== "own" || part !== "both",
  };
}

/** @param {Scene} scene @param {MovedHead} head @returns {boolean} whether the reader could have moved it there */
function canBeMoved({ networks }, { network, layer: number, head, centre }) {
  const layer = networks[network]?.layers[number];
  if (layer?.attention.kind !== "position" || head >= layer.heads) return false;
  const { centres, sharpness } = layer.attention.heads;
  return !!centres && !!sharpness && centre.every((size, axis) => Math.abs(size) <= layer.keys.grid[axis]);
}

/**
 * Says why a part of the scores cannot be shown; null if it can.
 * @param {SceneLayer[]} layers
 * @param {"both" | "position" | "content"} part
 * @returns {string | null}
 */
export function whyNoPart(layers, part) {
  if (part === "both") return null;
  if (layers.every(({ attention }) => attention.kind === "position")) {
    return "These heads look at displacements only, so there is no content part to take away.";
  }
  const some = layers.some((layer) =>
    layer.attention.kind === "maps"
      ? layer.attention.parts.includes(part) || (part === "position" && positionOf(layer))
      : part === "position",
  );
  return some ? null : "The scores of these heads do not come in parts.";
}

/**
 * Says why maps cannot be averaged over images; null if they can.
 * @param {SceneLayer[]} layers
 * @returns {string | null}
 */
export function whyNoAverage(layers) {
  const maps = layers.flatMap(({ attention }) => (attention.kind === "maps" ? [attention] : []));
  if (!maps.length) return "Their maps are the same for every image.";
  return maps.some(({ images }) => images.includes("mean")) ? null : "The average over images is not in this page.";
}

// What is painted, and how: one line of choices above the maps, and the bar of their colours below it.

/** @param {Model} model @returns {{element: HTMLElement, update: () => void}} */
export function createControls(model) {
  const { state, scene } = model;
  const network = h("select", {
    "aria-label": "Network",
    onchange: () => chooseNetwork(model, network.selectedIndex),
  });
  network.append(...scene.networks.map(({ title }) => h("option", null, title)));
  const networkBox = h("label", { class: "control" }, span("Network"), network);
  networkBox.hidden = scene.networks.length < 2;

  const choose = (/** @type {"part" | "extent"} */ field) => (/** @type {string} */ value) =>
    state.set({ [field]: value });
  const values = createSegments("Show", { weights: "Weights", scores: "Before softmax" }, (value) => {
    const scale = typeof state.get().scale === "number" ? "own" : state.get().scale;
    state.set({ values: /** @type {"weights" | "scores"} */ (value), scale });
  });
  const part = createSegments("Part", { both: "Both", position: "Position", content: "Content" }, choose("part"));
  const extent = createSegments("Small maps", { whole: "Whole image", near: "Near the query" }, choose("extent"));
  const limit = h("input", {
    type: "number",
    class: "limit",
    min: "0",
    step: "any",
    onchange: () => {
      if (Number(limit.value) > 0) state.set({ scale: Number(limit.value) });
      limit.value = String(state.get().scale);
    },
  });
  const scale = createSegments("Colour scale", { own: "Each its own", common: "Common", fixed: "Fixed" }, (value) =>
    state.set({ scale: value === "fixed" ? fixedLimit(model) : /** @type {"own" | "common"} */ (value) }),
  );
  const average = h("input", { type: "checkbox", onchange: () => state.set({ average: average.checked }) });
  const averageBox = h("label", { class: "check" }, average, span("Average over images"));
  const why = h("p", { class: "why", id: freshId("why") });
  for (const one of [part.element, average]) one.setAttribute("aria-describedby", why.id);

  const element = div(
    "controls",
    networkBox,
    values.element,
    part.element,
    div("with-limit", scale.element, limit),
    extent.element,
    averageBox,
    why,
  );

  return {
    element,
    update() {
      const now = state.get();
      network.selectedIndex = now.network;
      values.set(now.values);
      part.set(now.part);
      extent.set(now.extent);
      const fixed = typeof now.scale === "number";
      scale.set(fixed ? "fixed" : String(now.scale));
      limit.hidden = !fixed;
      const reach =
        now.values === "scores" ? "How far below the largest the colours reach" : "Largest value of the colours";
      setProp(limit, "aria-label", reach);
      if (fixed && document.activeElement !== limit) limit.value = String(now.scale);
      const { layers } = model.network();
      const [noPosition, noContent] = [whyNoPart(layers, "position"), whyNoPart(layers, "content")];
      part.allow("position", noPosition);
      part.allow("content", noContent);
      average.checked = now.average;
      const noAverage = whyNoAverage(layers);
      average.disabled = noAverage !== null;
      averageBox.classList.toggle("disabled", average.disabled);
      say(why, [...new Set([noPosition, noContent, noAverage])].filter(Boolean).join(" "));
    },
  };
}

/**
 * Chooses another network, with the head at the same place if it has one.
 * @param {Model} model
 * @param {number} network
 */
export function chooseNetwork({ scene, state }, network) {
  state.set(withinScene(scene, { ...state.get(), network }));
}

/** @param {Model} model @returns {number} the largest value now, to start a fixed scale from */
function fixedLimit(model) {
  const { layer, head, values } = model.state.get();
  const [low, high] = model.limits(layer, head);
  return Number((values === "scores" ? -low : high).toPrecision(2)) || 1;
}

/** @param {Model} model @param {Uint32Array} [colours] @returns {{element: HTMLElement, update: () => void}} */
export function createColourBar(model, colours) {
  const canvas = h("canvas", { class: "ramp", "aria-hidden": true });
  const marks = Array.from({ length: 5 }, () => h("span"));
  const title = h("span", { class: "bar-title" });
  const element = div("colour-bar", title, div("bar", canvas, div("bar-marks", ...marks)));
  return {
    element,
    update() {
      const { layer, head, scale, values } = model.state.get();
      drawRamp(canvas, colours);
      const [low, high] = model.limits(layer, head);
      marks.forEach((mark, at) => {
        const share = at / (marks.length - 1);
        say(mark, numberText(low + (high - low) * (low < 0 ? share : share ** 2), 2));
      });
      const what = values === "weights" ? "Weight" : "Log weight below the largest";
      const whose =
        scale === "own" ? `, layer ${model.layer().number} head ${head + 1} (each map has its own)` : ", all maps";
      say(title, what + whose);
    },
  };
}

// The images of the scene, and one's own: the query stays where it is when the image is swapped.

/**
 * @param {Model} model
 * @param {HTMLElement} dropZone where files may be dropped
 * @returns {{element: HTMLElement, update: () => void}}
 */
export function createImages(model, dropZone) {
  const { scene, state } = model;
  const takes = takesPictures(scene);
  const strip = h("div", { class: "thumbs", role: "toolbar", "aria-label": "Image" });
  const status = h("p", { class: "caption", role: "status" });
  const file = h("input", { type: "file", accept: "image/*", onchange: () => void take(file.files?.[0]) });
  const own = h("label", { class: "button file-button" }, file, span("Own image …"));
  const note = para("caption image-note");
  const element = div("images", strip, takes ? own : null, status, note);

  /** @param {number} image */
  const choose = (image) => state.set({ image, average: false });

  /** @param {File | undefined} picked */
  async function take(picked) {
    if (!picked) return;
    say(status, `Reading ${picked.name} …`);
    try {
      choose(await addPicture(scene, picked));
      say(status, "");
    } catch (error) {
      say(status, reasonOf(error));
    }
    file.value = "";
  }

  strip.addEventListener("keydown", (event) => {
    const thumbs = /** @type {HTMLElement[]} */ ([...strip.children]);
    const across = thumbs.filter(({ offsetTop }) => offsetTop === thumbs[0].offsetTop).length;
    const { image } = state.get();
    const target = keyTarget(event, [Math.floor(image / across), image % across]);
    if (!target) return;
    const [row, col] = nearestInside(target, [Math.ceil(thumbs.length / across), across]);
    choose(Math.min(row * across + col, thumbs.length - 1));
    thumbs[state.get().image].focus();
  });

  if (takes) {
    const drag = (/** @type {DragEvent} */ event) => {
      event.preventDefault(); // a file that is dropped beside the images would take the place of the page
      const here = !dropZone.closest("[hidden]");
      dropZone.classList.toggle("drop-here", here && event.type === "dragover");
      if (here && event.type === "drop") void take(event.dataTransfer?.files[0]);
    };
    for (const kind of /** @type {const} */ (["dragover", "dragleave", "drop"])) document.addEventListener(kind, drag);
  }

  return {
    element,
    update() {
      const { image, average } = state.get();
      note.textContent = (!average && scene.images[image].note) || "";
      note.hidden = !note.textContent;
      keepChildren(strip, scene.images.length, (number) => {
        const { name, label } = scene.images[number];
        const canvas = h("canvas");
        drawImage(model, canvas, number); // the button takes a copy: every canvas on a page costs each of its frames
        const text = label && label !== name ? `${name}, ${label}` : name;
        const copy = h("img", { src: canvas.toDataURL(), alt: "" });
        const onclick = () => choose(number);
        return h("button", { class: "thumb", "aria-label": text, title: text, onclick }, copy);
      }).forEach((button, at) =>
        setProps(button, { tabindex: at === image ? 0 : -1, "aria-pressed": at === image && !average }),
      );
    },
  };
}
