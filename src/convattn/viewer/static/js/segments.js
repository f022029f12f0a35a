import { div, freshId, h, span } from "./dom.js";

/**
 * Makes a group of radio buttons that looks like one control.
 * @param {string} legend
 * @param {Record<string, string>} choices texts by value
 * @param {(value: string) => void} chosen
 * @returns {{element: HTMLElement, set: (value: string) => void, allow: (value: string, why: string | null) => void}}
 */
export function createSegments(legend, choices, chosen) {
  const name = freshId("choice");
  const items = Object.entries(choices).map(([value, text]) => {
    const input = h("input", { type: "radio", name, value, onchange: () => chosen(value) });
    return { value, input, label: h("label", null, input, span(text)) };
  });
  const element = h(
    "fieldset",
    { class: "segments" },
    h("legend", null, legend),
    div("segment-row", ...items.map(({ label }) => label)),
  );
  return {
    element,
    set: (value) => items.forEach(({ input }) => void (input.checked = input.value === value)),
    allow(value, reason) {
      for (const { input, label } of items.filter((item) => item.value === value)) {
        input.disabled = reason !== null;
        label.title = reason ?? "";
      }
    },
  };
}
