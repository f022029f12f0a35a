import { h, svg } from "../dom.js";
import { tenTo } from "./view.js";

// Charts with logarithmic axes, drawn as SVG.

const CHART_WIDTH = 380;
const CHART_EDGE = { left: 50, right: 12, top: 12, bottom: 40 };

/** @typedef {{low: number, high: number, name: string, ticks: number[]}} ChartAxis */
/** @typedef {{name: string, kind: string, points: [number, number][], dots?: boolean}} Series */

/** @param {number} value  powers of ten from 1000 on are written as powers */
function tickText(value) {
  const power = Math.round(Math.log10(value));
  return Math.abs(power) > 2 && 10 ** power === value ? tenTo(power) : value.toLocaleString("en");
}

/**
 * Makes an empty chart.
 * @param {ChartAxis} x
 * @param {ChartAxis} y
 * @param {string} name  for screen readers
 * @param {number} [height]
 */
export function logChart(x, y, name, height = 250) {
  const across = (/** @type {number} */ value) =>
    CHART_EDGE.left +
    ((CHART_WIDTH - CHART_EDGE.left - CHART_EDGE.right) * Math.log(value / x.low)) / Math.log(x.high / x.low);
  const down = (/** @type {number} */ value) =>
    CHART_EDGE.top +
    (height - CHART_EDGE.top - CHART_EDGE.bottom) *
      (1 - Math.log(Math.max(value, y.low) / y.low) / Math.log(y.high / y.low));
  const grid = svg("g", { class: "learn-grid" });
  for (const value of x.ticks) {
    grid.append(
      svg("line", { x1: across(value), x2: across(value), y1: CHART_EDGE.top, y2: height - CHART_EDGE.bottom }),
      svg("text", { x: across(value), y: height - CHART_EDGE.bottom + 15, "text-anchor": "middle" }, tickText(value)),
    );
  }
  for (const value of y.ticks) {
    grid.append(
      svg("line", { x1: CHART_EDGE.left, x2: CHART_WIDTH - CHART_EDGE.right, y1: down(value), y2: down(value) }),
      svg("text", { x: CHART_EDGE.left - 6, y: down(value) + 4, "text-anchor": "end" }, tickText(value)),
    );
  }
  grid.append(
    svg(
      "text",
      { class: "learn-axis", x: CHART_WIDTH - CHART_EDGE.right, y: height - 6, "text-anchor": "end" },
      x.name,
    ),
  );
  const lines = svg("g");
  const picture = svg("svg", { viewBox: `0 0 ${CHART_WIDTH} ${height}`, role: "img", "aria-label": name }, grid, lines);
  const legend = h("div", { class: "learn-legend" });
  return {
    root: h("figure", { class: "learn-chart" }, h("figcaption", null, y.name), picture, legend),
    picture,
    across,
    down,
    /** @param {number} share  of the width of the chart @returns {number} the value there */
    valueAt(share) {
      const inside = (share * CHART_WIDTH - CHART_EDGE.left) / (CHART_WIDTH - CHART_EDGE.left - CHART_EDGE.right);
      return x.low * (x.high / x.low) ** Math.min(Math.max(inside, 0), 1);
    },
    /** @param {Series[]} series */
    draw(series) {
      lines.replaceChildren(
        ...series.flatMap(({ kind, points, dots }) => [
          svg("polyline", {
            class: `learn-line ${kind}`,
            points: points.map(([at, value]) => `${across(at)},${down(value)}`).join(" "),
          }),
          ...(dots ? points : []).map(([at, value]) =>
            svg("circle", { class: `learn-dot ${kind}`, cx: across(at), cy: down(value), r: 3 }),
          ),
        ]),
      );
      legend.replaceChildren(
        ...series.map(({ name, kind }) =>
          h(
            "span",
            null,
            svg(
              "svg",
              { viewBox: "0 0 24 8", width: 24, height: 8, "aria-hidden": true },
              svg("line", { class: `learn-line ${kind}`, x1: 0, x2: 24, y1: 4, y2: 4 }),
            ),
            name,
          ),
        ),
      );
    },
  };
}
