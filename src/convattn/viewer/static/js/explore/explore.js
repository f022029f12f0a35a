// The Explore view: any network's heads, seen from a query.

import { calm, div, h, para, say, section } from "../dom.js";
import { createAsks } from "./asks.js";
import { createColourBar, createControls, createImages } from "./choices.js";
import { createClasses } from "./classes.js";
import { createComparison, createDetail } from "./detail.js";
import { createQueryPicture } from "./field.js";
import { createMatrix } from "./matrix.js";
import { createModel } from "./model.js";
import { createSaving } from "./saving.js";
import { createDisplacementTable } from "./table.js";
import { createTimeline } from "./timeline.js";

/** @import { Scene } from "../scene.js" */
/** @import { State, ViewState } from "../state.js" */

/** Time after the last change at which it is said to screen readers, in ms. */
const SAY_DELAY = 600;

/** Time that a network waits before it runs again while its heads are moved, in ms: the map comes first. */
const SCORE_DELAY = 100;

/**
 * Shows the view in an element.
 * @param {HTMLElement} root
 * @param {Scene} scene
 * @param {State} state
 * @param {() => string | null} address of this view; null if the page has none of its own
 * @returns {{repaint: () => void}}
 */
export function mountExplore(root, scene, state, address) {
  const model = createModel(scene, state);
  const said = h("p", { class: "only-heard", "aria-live": "polite", "data-testid": "said" });
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  const picture = createQueryPicture(model);
  const images = createImages(model, root);
  const classes = createClasses(model);
  const table = createDisplacementTable(model);
  const controls = createControls(model);
  const detail = createDetail(model, classes.element);
  const asks = createAsks(model);
  const matrix = createMatrix(model, openDetail);
  const bar = createColourBar(model);
  const comparison = createComparison(model, showOverview);
  const timeline = createTimeline(model);
  const count = h("span", { class: "table-size" });
  const note = para("caption network-note");
  const back = h("button", { class: "back", onclick: showOverview }, "← All heads");
  detail.element.prepend(back);

  const overview = section(
    "overview",
    "All heads",
    h("h2", null, "All heads ", count),
    note,
    trouble,
    matrix.element,
    bar.element,
  );
  const saving = createSaving(model, address);
  for (const part of [note, bar.element, controls.element, table.element, comparison.element, timeline.element, saving])
    part.classList.add("all-only");
  const subject = section("subject", "Image and query", picture.element, images.element);
  const view = div(
    "explore",
    div("asking", asks.element, controls.element),
    div("left", subject, table.element),
    overview,
    detail.element,
    div("lower", comparison.element, timeline.element),
    saving,
    said,
  );
  root.append(view);

  let saying = 0;
  function paintRows() {
    say(trouble, model.trouble());
    trouble.hidden = !model.trouble();
    for (const part of [picture, matrix, detail]) part.update();
    if (state.get().controls) for (const part of [bar, table, comparison]) part.update();
    clearTimeout(saying);
    saying = window.setTimeout(() => say(said, detail.said()), SAY_DELAY);
  }

  function paintChoices() {
    const { note: text, layers, title } = model.network();
    say(note, text);
    say(count, `${layers.length} ${layers.length === 1 ? "layer" : "layers"} of ${title}`);
    view.classList.toggle("simple", !state.get().controls);
    for (const part of [asks, controls, images, timeline]) part.update();
  }

  const goTo = (/** @type {Element} */ part) => part.scrollIntoView({ behavior: calm() ? "auto" : "smooth" });

  function openDetail() {
    const { top, bottom } = detail.map.getBoundingClientRect();
    if (top >= innerHeight || bottom <= 0) goTo(detail.element);
  }

  function showOverview() {
    goTo(overview);
    const chosen = overview.querySelector('button.map[aria-pressed="true"]');
    if (chosen instanceof HTMLElement) chosen.focus({ preventScroll: true });
  }

  let scoring = 0;
  function scoreSoon() {
    scoring ||= window.setTimeout(() => {
      scoring = 0;
      classes.update();
    }, SCORE_DELAY);
  }

  model.listen((news) => {
    if (news === "rows") paintRows();
    if (news === "heads") {
      classes.wait();
      scoreSoon();
    }
  });
  state.subscribe((_, changed) => {
    const has = (/** @type {(keyof ViewState)[]} */ ...fields) => fields.some((field) => changed.has(field));
    if (has("image", "network", "average")) scoreSoon();
    if (changed.size > Number(has("query")) + Number(has("moved"))) paintChoices();
    if (has("layer", "head", "order", "beside", "ask", "controls")) paintRows();
  });

  paintChoices();
  paintRows();
  scoreSoon();
  model.refresh();

  return {
    repaint() {
      paintChoices();
      paintRows();
    },
  };
}
