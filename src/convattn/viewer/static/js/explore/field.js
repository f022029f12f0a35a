// A plane in pixels of the image: pictures and maps on top of each other, marks above them, a query that is moved by
// pointer or keys, and a handle on the centre of a head.

import {
  div,
  followArrows,
  followPointer,
  freshId,
  h,
  keepChildren,
  keyTarget,
  para,
  pointedShare,
  say,
  setProp,
  setProps,
  span,
  svg,
} from "../dom.js";
import { drawPicture, fixedText } from "../draw.js";
import { queryWords, shiftWords, unitOf } from "./words.js";
import { clamp } from "../numbers.js";
import { cellCentre, nearestCell, nearestInside, pictureShape } from "../scene.js";

/** @import { Model } from "./model.js" */
/** @import { Pair, SceneLayer, Tensor } from "../scene.js" */

/** @typedef {{top: number, left: number, bottom: number, right: number}} Extent   edges, in pixels of the image */

/**
 * Returns the edges of a lattice of cells.
 * @param {{first: Pair, step: Pair}} place
 * @param {Pair} grid
 * @returns {Extent}
 */
export function extentOf({ first, step }, grid) {
  return {
    top: first[0] - step[0] / 2,
    left: first[1] - step[1] / 2,
    bottom: first[0] + step[0] * (grid[0] - 0.5),
    right: first[1] + step[1] * (grid[1] - 0.5),
  };
}

/** Returns the edges of what holds both. @param {Extent} one @param {Extent} other @returns {Extent} */
export function unionOf(one, other) {
  return {
    top: Math.min(one.top, other.top),
    left: Math.min(one.left, other.left),
    bottom: Math.max(one.bottom, other.bottom),
    right: Math.max(one.right, other.right),
  };
}

/** Tells whether cells lie beyond the image: there is padding. @param {Extent} cells @param {Extent} image */
export const reachesBeyond = (cells, image) =>
  Math.min(cells.top - image.top, cells.left - image.left) < -0.01 ||
  Math.max(cells.bottom - image.bottom, cells.right - image.right) > 0.01;

/** Writes a share as a length of CSS, as browsers write it back. @param {number} share @param {string} [unit] */
export const cssShare = (share, unit = "%") => `${Number((100 * share).toFixed(3))}${unit}`;

/** @param {Extent} extent @returns {Record<string, number>} attributes of an SVG rectangle */
export function rectangle({ top, left, bottom, right }) {
  return { x: left, y: top, width: right - left, height: bottom - top };
}

/** @param {Extent} extent @returns {string} the path around it */
function rectanglePath(extent) {
  const { x, y, width, height } = rectangle(extent);
  return `M${x} ${y}h${width}v${height}h${-width}z`;
}

/** @param {string} kind @returns {SVGElement[]} a rectangle with a broader one behind it, to be seen on any picture */
export const doubleMark = (kind) => [`${kind} ${kind}-back`, kind].map((name) => svg("rect", { class: name }));

/** @typedef {ReturnType<typeof createField>} Field */

/** A plane of canvases with marks above. @param {HTMLCanvasElement[]} canvases from the lowest to the highest */
export function createField(canvases) {
  /** @type {Extent} */
  let extent = { top: -0.5, left: -0.5, bottom: 0.5, right: 0.5 };
  const hatch = freshId("hatch");
  const pattern = svg(
    "pattern",
    { id: hatch, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { class: "hatch-line" }),
  );
  const outside = svg("path", { class: "outside", "fill-rule": "evenodd", fill: `url(#${hatch})` });
  const edge = svg("rect", { class: "image-edge" });
  const query = doubleMark("query-mark");
  const marks = svg(
    "svg",
    { class: "marks", "aria-hidden": true, preserveAspectRatio: "none", focusable: "false" },
    svg("defs", null, pattern),
    outside,
    edge,
    ...query,
  );
  const element = div("field", ...canvases, marks);

  const across = (/** @type {number} */ col) => (col - extent.left) / (extent.right - extent.left);
  const down = (/** @type {number} */ row) => (row - extent.top) / (extent.bottom - extent.top);

  return {
    element,
    marks,
    /** @param {Extent} next in pixels of the image, as the marks are */
    setExtent(next) {
      extent = next;
      const { x, y, width, height } = rectangle(extent);
      setProp(marks, "viewBox", `${x} ${y} ${width} ${height}`);
      setProp(element, "style", { "aspect-ratio": `${width} / ${height}` });
      const size = Math.max(width, height) / 60;
      setProps(pattern, { width: size, height: size });
      setProps(/** @type {Element} */ (pattern.firstChild), { width: size / 4, height: size });
    },
    /** Puts a canvas where it belongs. @param {HTMLCanvasElement} canvas @param {Extent} extent */
    place(canvas, { top, left, bottom, right }) {
      setProp(canvas, "style", {
        left: cssShare(across(left)),
        top: cssShare(down(top)),
        width: cssShare(across(right) - across(left)),
        height: cssShare(down(bottom) - down(top)),
      });
    },
    /** Puts an element on a pixel, or on the edge nearest to it. @param {HTMLElement} point @param {Pair} pixel */
    placePoint(point, [row, col]) {
      const within = (/** @type {number} */ share, /** @type {string} */ unit) => cssShare(clamp(share, 0, 1), unit);
      const transform = `translate(${within(across(col), "cqw")}, ${within(down(row), "cqh")})`;
      setProp(point, "style", { transform }); // a transform moves without a new layout
    },
    /** @param {PointerEvent} event @returns {Pair} row and column under a pointer, with fractions */
    pixelAt(event) {
      const [down, across] = pointedShare(marks, event);
      const { x, y, width, height } = rectangle(extent);
      return [y + down * height, x + across * width];
    },
    /** Outlines the image, and hatches what is outside. @param {Extent} image @param {boolean} padded */
    showImageEdge(image, padded) {
      setProp(outside, "d", padded ? rectanglePath(extent) + rectanglePath(image) : null);
      setProps(edge, rectangle(image));
      setProp(edge, "visibility", padded ? null : "hidden");
    },
    /** Outlines the query. @param {Extent | null} cell */
    showQuery(cell) {
      for (const mark of query) {
        setProp(mark, "visibility", cell ? null : "hidden");
        if (cell) setProps(mark, rectangle(cell));
      }
    },
  };
}

/**
 * Returns the edges of the cell of a layer's query.
 * @param {SceneLayer} layer
 * @param {Pair} cell
 * @returns {Extent}
 */
export function cellExtent({ place }, cell) {
  return extentOf({ first: cellCentre(place, cell), step: place.step }, [1, 1]);
}

/**
 * Lets a pointer drag over an element: from its press until it is let go.
 * @param {HTMLElement | SVGElement} element
 * @param {(event: PointerEvent) => void} move called at the press, too
 */
export function onDrag(element, move) {
  followPointer(element, (event, first) => {
    if (first) {
      event.preventDefault();
      event.stopPropagation();
      element.focus({ preventScroll: true });
    }
    move(event);
  });
}

// The image and its query: dragged, or moved by the arrow keys from cell to cell of the chosen layer.

/** Returns rows and columns of the picture that is shown. @param {Model} model @returns {Pair} */
export function pictureSize({ scene, state }) {
  return pictureShape(scene, state.get().image);
}

/** Returns the edges of the picture that is shown. @param {Model} model @returns {Extent} */
export const pictureExtent = (model) => extentOf({ first: [0, 0], step: [1, 1] }, pictureSize(model));

/** What was drawn last. @type {WeakMap<HTMLCanvasElement, Tensor>} */
const drawnImages = new WeakMap();

/**
 * Draws the picture of the state's image, unless it is there already.
 * @param {Model} model
 * @param {HTMLCanvasElement} canvas
 * @param {number} [image]
 */
export function drawImage({ scene, state }, canvas, image = state.get().image) {
  const tensor = scene.tensors.get(scene.images[image].picture);
  if (!tensor || drawnImages.get(canvas) === tensor) return;
  drawnImages.set(canvas, tensor);
  drawPicture(canvas, /** @type {Uint8Array} */ (tensor.data), tensor.shape[0], tensor.shape[1]);
}

/** Puts the query on a pixel: the nearest within the image. @param {Model} model @param {Pair} pixel */
function setQuery(model, [row, col]) {
  const [rows, cols] = pictureSize(model);
  // A centre between two pixels goes to the lower one, whose nearest cell it is: `nearestCell` rounds up.
  const inside = (/** @type {number} */ place, /** @type {number} */ size) =>
    clamp(Math.ceil(place - 0.5), 0, size - 1);
  model.state.set({ query: [inside(row, rows), inside(col, cols)], prefix: null });
}

/**
 * Lets keys and pointer move the query over an element.
 * @param {Model} model
 * @param {Field} field
 * @param {string} name what it is
 */
export function steerQuery(model, field, name) {
  setProps(field.element, { role: "application", "aria-roledescription": name, tabindex: 0 });
  onDrag(field.element, (event) => setQuery(model, field.pixelAt(event)));
  field.element.addEventListener("keydown", (event) => {
    if (event.target !== field.element) return; // but the handle on it
    const layer = model.layer();
    const least = Math.ceil(1 / Math.min(...layer.place.step) - 1e-6); // cells of a pixel: queries are pixels
    const next = keyTarget(event, nearestCell(layer, model.state.get().query), least * (event.shiftKey ? 4 : 1));
    if (next) setQuery(model, cellCentre(layer.place, nearestInside(next, layer.grid)));
  });
}

/** @param {Model} model @returns {{element: HTMLElement, update: () => void}} */
export function createQueryPicture(model) {
  const { scene, state } = model;
  const canvas = h("canvas");
  const field = createField([canvas]);
  const { element } = field;
  element.dataset.testid = "picture";
  steerQuery(model, field, "query pixel");

  const place = h("output", { class: "query-place", "data-testid": "query" });
  const prefixes = h("div", { class: "choices", role: "group", "aria-label": "Query" });
  let drawn = -1;

  function showPrefixes() {
    const names = model.layer().prefix;
    prefixes.hidden = !names.length;
    const { prefix } = state.get();
    keepChildren(prefixes, names.length + 1, (at) =>
      h("button", { class: "choice", onclick: () => state.set({ prefix: at ? at - 1 : null }) }),
    ).forEach((button, at) => {
      setProp(button, "aria-pressed", prefix === (at ? at - 1 : null));
      say(button, at ? `${names[at - 1]} token` : "pixel");
    });
  }

  function update() {
    const { image, query, prefix, average } = state.get();
    element.classList.toggle("faint", average);
    if (drawn !== image) {
      const extent = pictureExtent(model);
      field.setExtent(extent);
      field.place(canvas, extent);
      field.showImageEdge(extent, false);
      drawImage(model, canvas);
      drawn = image;
    }
    const layer = model.layer();
    field.showQuery(prefix === null ? cellExtent(layer, nearestCell(layer, query)) : null);
    const words = queryWords(state.get(), layer.prefix);
    setProp(element, "aria-label", `${scene.images[image].name}. Query: ${words}. Arrow keys move it.`);
    [place.dataset.row, place.dataset.col] = query.map(String);
    say(place, `Query: ${words}`);
    showPrefixes();
  }

  const hint = para("hint", "Press or drag: all maps show where heads look from there.");
  return { element: div("query", element, div("query-line", place, prefixes), hint), update };
}

// A handle on the centre of a quadratic head: drag it, or move it by keys; the map and the network follow.

/** Step of the arrow keys, in steps of the keys; Shift takes a tenth. */
const KEY_STEP = 0.5;

/**
 * @param {Model} model
 * @param {Field} field
 * @returns {{element: HTMLElement, tools: HTMLElement, update: (query: Pair | null) => void}}
 */
export function createHandle(model, field) {
  const { state } = model;
  const element = h("button", { class: "handle", "data-testid": "handle" });
  const putBack = () => {
    model.reset();
    element.focus({ preventScroll: true }); // this button is gone
  };
  const reset = h("button", { onclick: putBack }, "Put heads back");
  const sharpness = h("input", {
    type: "range",
    min: "-4",
    max: "4",
    step: "0.05",
    oninput: () => {
      const { layer, head } = state.get();
      model.move(layer, head, centreNow(), Math.exp(Number(sharpness.value)));
    },
  });
  const sharpnessText = h("output", { "aria-live": "off" }); // the slider says it
  const hint = para("hint", "Drag the ring: it is the centre of this head.");
  const slider = h("label", { class: "slider" }, span("Sharpness"), sharpness, sharpnessText);
  const tools = div("handle-tools", hint, slider, reset);
  /** @type {Pair | null} */
  let stand = null;

  /** @returns {Pair} */
  function centreNow() {
    const { layer, head } = state.get();
    const heads = model.quadratic(layer);
    return heads ? [heads.centres[2 * head], heads.centres[2 * head + 1]] : [0, 0];
  }

  /** @param {Pair} centre */
  function moveTo(centre) {
    const { layer, head } = state.get();
    const { grid } = model.layer().keys;
    const within = /** @type {Pair} */ (centre.map((size, axis) => clamp(size, -grid[axis], grid[axis])));
    model.move(layer, head, within);
  }

  /** From the press to the centre: a press beside the middle of the ring moves nothing. @type {Pair} */
  let grip = [0, 0];
  onDrag(element, (event) => {
    if (!stand) return;
    const pixel = field.pixelAt(event);
    const { step } = model.layer().keys;
    const [down, right] = [(pixel[0] - stand[0]) / step[0], (pixel[1] - stand[1]) / step[1]];
    if (event.type === "pointerdown") {
      const centre = centreNow();
      grip = [centre[0] - down, centre[1] - right];
    } else moveTo([down + grip[0], right + grip[1]]);
  });
  followArrows(element, (arrow, event) => {
    const step = event.shiftKey ? KEY_STEP / 10 : KEY_STEP;
    const [down, right] = centreNow();
    moveTo([down + step * arrow[0], right + step * arrow[1]]);
  });

  return {
    element,
    tools,
    update(query) {
      stand = query;
      const { layer, head } = state.get();
      const heads = model.quadratic(layer);
      element.hidden = !heads || !query;
      tools.hidden = !heads;
      if (!heads || !query) return;
      slider.hidden = state.get().ask !== "move" && !state.get().controls && !model.anyMoved();
      const centre = centreNow();
      const { step } = model.layer().keys;
      field.placePoint(element, [query[0] + step[0] * centre[0], query[1] + step[1] * centre[1]]);
      setProp(
        element,
        "aria-label",
        `Centre of head ${head + 1}: ${shiftWords(centre, unitOf(model.layer()), 2)}. Arrow keys move it.`,
      );
      const alpha = heads.sharpness[head];
      if (document.activeElement !== sharpness) sharpness.value = String(Math.log(alpha));
      say(sharpnessText, `α = ${fixedText(alpha, 2)}`);
      setProps(sharpness, { "aria-valuetext": fixedText(alpha, 2) }); // it runs over the logarithm
      reset.hidden = !model.anyMoved();
    },
  };
}
