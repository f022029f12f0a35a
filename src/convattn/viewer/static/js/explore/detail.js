// One head in detail: its map over the image, what it does in words and numbers, and a handle on its centre.

import { div, h, keepChildren, para, say, section, setProp, span } from "../dom.js";
import { drawBars, fixedText } from "../draw.js";
import { cellCentre, nearestCell } from "../scene.js";
import { rowNumbers } from "../statistics.js";
import { cellExtent, createField, extentOf, unionOf } from "./field.js";
import { createHandle } from "./handle.js";
import { drawImage, pictureExtent, steerQuery } from "./query.js";
import { paintMap } from "./small.js";
import { headSentence, percent, shiftWords, statisticText, unitOf } from "./words.js";

/** @typedef {import("./model.js").Model} Model */

/** Numbers of a head report that are of many images, with what they are called here, and units. @type {string[][]} */
const REPORT_ONLY = [
  ["position_score", "position score", ""],
  ["content_share", "content share", "%"],
  ["distance", "attention distance", ""],
];

/** What the numbers of a head mean. */
const NUMBER_WORDS =
  "Mean shift: where the head looks on average. Spread: how far from there. Entropy: 0 if one key has all the" +
  " attention. Hard share: what the strongest key has.";

/**
 * @param {Model} model
 * @returns {{element: HTMLElement, map: HTMLElement, update: () => void, said: () => string}}
 */
export function createDetail(model) {
  const { state } = model;
  const picture = h("canvas");
  const canvas = h("canvas", { class: "heat" });
  const field = createField([picture, canvas]);
  const handle = createHandle(model, field);
  field.element.append(handle.element);
  steerQuery(model, field, "attention map");

  const title = h("h2");
  const sentence = h("p", { class: "sentence", "data-testid": "sentence" });
  const bars = div("prefix-bars");
  const numbers = h("tbody");
  const heads = ["Number", "This query", "Over images"].map((text) => h("th", { scope: "col" }, text));
  const table = h(
    "table",
    { class: "numbers" },
    h("caption", null, "Numbers of this head"),
    h("thead", null, h("tr", null, ...heads)),
    numbers,
  );
  const paddingNote = para("caption", "Hatched: padding around the image.");
  const layerSentence = para("layer-sentence");
  const opacity = h("input", {
    type: "range",
    min: "0",
    max: "100",
    value: "75",
    oninput: () => fade(),
  });
  const fade = () => canvas.style.setProperty("opacity", `${Number(opacity.value) / 100}`);
  fade();
  const element = section(
    "detail",
    "Chosen head",
    title,
    sentence,
    div("detail-map", field.element, bars),
    div("under-map", paddingNote, h("label", { class: "slider" }, span("Image"), opacity, span("Map")), handle.tools),
    table,
    para("caption", NUMBER_WORDS),
    layerSentence,
  );

  function update() {
    const { layer: number, head, query, prefix, average } = state.get();
    const layer = model.layer();
    const shown = model.shown(number);
    say(title, `Layer ${number + 1}, head ${head + 1}`);
    say(layerSentence, layer.sentence ?? "");
    const keys = extentOf(layer.keys, layer.keys.grid);
    const edge = pictureExtent(model);
    field.setExtent(unionOf(keys, edge));
    drawImage(model, picture);
    picture.style.visibility = average ? "hidden" : "";
    field.place(picture, edge);
    field.place(canvas, keys);
    const padded = keys.top < edge.top - 0.01 || keys.left < edge.left - 0.01;
    field.showImageEdge(edge, padded);
    paddingNote.hidden = !padded;
    const cell = nearestCell(layer, query);
    field.showQuery(prefix === null ? cellExtent(layer, cell) : null);
    handle.update(prefix === null ? cellCentre(layer.place, cell) : null);
    canvas.hidden = table.hidden = !shown;
    if (!shown) {
      say(sentence, model.trouble() || "This layer has no map of this query.");
      bars.hidden = true;
      return;
    }
    paintMap(model, canvas, number, head);
    const found = rowNumbers(layer, shown.rows, head);
    const words = headSentence(layer, number, head, found);
    say(sentence, `${words}.`);
    setProp(field.element, "aria-label", `${words}. Arrow keys move the query.`);
    showPrefix(found.prefix);
    showNumbers(found);
  }

  /** @param {number[]} shares */
  function showPrefix(shares) {
    const names = model.layer().prefix;
    bars.hidden = !names.length;
    keepChildren(bars, names.length, () => div("prefix-bar", h("span"), h("canvas"), h("span"))).forEach(
      ({ children: [share, bar, token] }, at) => {
        drawBars(/** @type {HTMLCanvasElement} */ (bar), [shares[at]], { bar: model.theme(), height: 100 });
        say(share, percent(shares[at]));
        say(token, names[at]);
      },
    );
  }

  /** @param {import("../statistics.js").RowNumbers} found */
  function showNumbers(found) {
    const { head } = state.get();
    const layer = model.layer();
    const report = layer.statistics?.[head];
    const unit = unitOf(layer);
    heads[2].hidden = !report;
    /** @type {[string, string, string | null][]} name, of this query, of the report */
    const lines = [
      ["mean shift", found.shift ? shiftWords(found.shift, unit, 2) : "–", statisticText(report?.shift, unit)],
      ["spread", found.shift ? `${fixedText(found.spread)} ${unit}` : "–", statisticText(report?.spread, unit)],
      ["entropy", `${fixedText(found.entropy)} nats`, statisticText(report?.entropy, "nats")],
      ["hard share", percent(found.hardShare), statisticText(report?.hard_share, "%")],
    ];
    if (layer.prefix.length)
      lines.push(["prefix share", percent(found.prefixShare), statisticText(report?.prefix_share, "%")]);
    if (report)
      for (const [name, text, unit] of REPORT_ONLY)
        if (report[name]) lines.push([text, "", statisticText(report[name], unit)]);
    keepChildren(numbers, lines.length, () => h("tr", null, h("th", { scope: "row" }), h("td"), h("td"))).forEach(
      ({ children }, at) => {
        lines[at].forEach((text, column) => say(children[column], text ?? ""));
        setProp(children[2], "hidden", !report);
      },
    );
  }

  return { element, map: field.element, update, said: () => sentence.textContent ?? "" };
}
