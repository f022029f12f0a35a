// Charts with logarithmic axes, drawn as SVG.

import { div, h, span, svg } from "../dom.js";
import { tenTo } from "./view.js";
import { clamp } from "../numbers.js";

const CHART_LEFT = 50;
const CHART_SPAN = 318; // width of the axes
const CHART_WIDTH = 380;

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
  const bottom = height - 40;
  const across = (/** @type {number} */ at) =>
    CHART_LEFT + (CHART_SPAN * Math.log(at / x.low)) / Math.log(x.high / x.low);
  const down = (/** @type {number} */ value) =>
    bottom - ((bottom - 12) * Math.log(Math.max(value, y.low) / y.low)) / Math.log(y.high / y.low);
  const grid = svg("g", { class: "learn-grid" });
  const write = (
    /** @type {number} */ left,
    /** @type {number} */ top,
    /** @type {string} */ kind,
    /** @type {string} */ text,
  ) => grid.append(svg("text", { class: kind, x: left, y: top }, text));
  for (const tick of x.ticks) {
    const left = across(tick);
    grid.append(svg("line", { x1: left, x2: left, y1: 12, y2: bottom }));
    write(left, bottom + 15, "learn-middle", tickText(tick));
  }
  for (const tick of y.ticks) {
    const top = down(tick);
    grid.append(svg("line", { x1: CHART_LEFT, x2: CHART_LEFT + CHART_SPAN, y1: top, y2: top }));
    write(CHART_LEFT - 6, top + 4, "learn-end", tickText(tick));
  }
  write(CHART_LEFT + CHART_SPAN, height - 6, "learn-end", x.name);
  const lines = svg("g");
  const picture = svg("svg", { viewBox: `0 0 ${CHART_WIDTH} ${height}`, role: "img", "aria-label": name }, grid, lines);
  const legend = div("learn-legend");
  return {
    root: h("figure", { class: "learn-chart" }, h("figcaption", null, y.name), picture, legend),
    picture,
    across,
    down,
    /** @param {number} share  of the width of the chart @returns {number} the value there */
    valueAt(share) {
      const inside = (share * CHART_WIDTH - CHART_LEFT) / CHART_SPAN;
      return x.low * (x.high / x.low) ** clamp(inside, 0, 1);
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
        ...series.map(({ name, kind }) => {
          const line = svg("line", { class: `learn-line ${kind}`, x2: 24, y1: 4, y2: 4 });
          return span(svg("svg", { "aria-hidden": true }, line), name);
        }),
      );
    },
  };
}
