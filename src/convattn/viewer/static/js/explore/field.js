// A plane in pixels of the image: pictures and maps on top of each other, marks above them, and a query that is moved
// by pointer or keys.

import { clamp } from "../clamp.js";
import { div, freshId, setProp, setProps, svg } from "../dom.js";
import { followPointer, pointedShare } from "../pointer.js";
import { cellCentre } from "../scene.js";

/** @typedef {import("../scene.js").Pair} Pair */
/** @typedef {import("../scene.js").SceneLayer} SceneLayer */
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

/**
 * Returns the edges of what holds both.
 * @param {Extent} one
 * @param {Extent} other
 * @returns {Extent}
 */
export function unionOf(one, other) {
  return {
    top: Math.min(one.top, other.top),
    left: Math.min(one.left, other.left),
    bottom: Math.max(one.bottom, other.bottom),
    right: Math.max(one.right, other.right),
  };
}

/**
 * Writes a share as a length of CSS, as browsers write it back.
 * @param {number} share
 * @param {string} [unit]
 */
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

/**
 * @typedef {object} Field
 * @property {HTMLElement} element
 * @property {SVGSVGElement} marks    above the canvases, in pixels of the image
 * @property {(extent: Extent) => void} setExtent
 * @property {(canvas: HTMLCanvasElement, extent: Extent) => void} place   puts a canvas where it belongs
 * @property {(point: HTMLElement, pixel: Pair) => void} placePoint   puts an element on a pixel, or on the edge nearest to it
 * @property {(event: PointerEvent) => Pair} pixelAt   row and column under a pointer, with fractions
 * @property {(image: Extent, padded: boolean) => void} showImageEdge   hatches what is outside the image
 * @property {(cell: Extent | null) => void} showQuery   outlines the query
 */

/**
 * @param {HTMLCanvasElement[]} canvases from the lowest to the highest
 * @returns {Field}
 */
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
    setExtent(next) {
      extent = next;
      const { x, y, width, height } = rectangle(extent);
      setProp(marks, "viewBox", `${x} ${y} ${width} ${height}`);
      setProp(element, "style", { "aspect-ratio": `${width} / ${height}` });
      const size = Math.max(width, height) / 60;
      setProps(pattern, { width: size, height: size });
      setProps(/** @type {Element} */ (pattern.firstChild), { width: size / 4, height: size });
    },
    place(canvas, { top, left, bottom, right }) {
      setProp(canvas, "style", {
        left: cssShare(across(left)),
        top: cssShare(down(top)),
        width: cssShare(across(right) - across(left)),
        height: cssShare(down(bottom) - down(top)),
      });
    },
    placePoint(point, [row, col]) {
      const within = (/** @type {number} */ share, /** @type {string} */ unit) => cssShare(clamp(share, 0, 1), unit);
      const transform = `translate(${within(across(col), "cqw")}, ${within(down(row), "cqh")})`;
      setProp(point, "style", { transform }); // a transform moves without a new layout
    },
    pixelAt(event) {
      const [down, across] = pointedShare(marks, event);
      const { x, y, width, height } = rectangle(extent);
      return [y + down * height, x + across * width];
    },
    showImageEdge(image, padded) {
      setProp(outside, "d", padded ? rectanglePath(extent) + rectanglePath(image) : null);
      setProps(edge, rectangle(image));
      setProp(edge, "visibility", padded ? null : "hidden");
    },
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
