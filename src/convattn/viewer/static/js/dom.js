// Elements made in code: no markup is ever built from data.

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, unknown>} Props */

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/**
 * Sets one property of an element: "class", "style" (an object, also of custom properties), "on…" (a listener), an
 * attribute otherwise. null, undefined and false leave the attribute out; true sets it empty, but "true" for aria-….
 * What is so already is left alone: browsers lay out and paint again what is set again.
 * @param {Element} element
 * @param {string} name
 * @param {unknown} value
 */
export function setProp(element, name, value) {
  if (name.startsWith("on")) {
    element.addEventListener(name.slice(2).toLowerCase(), /** @type {EventListener} */ (value));
  } else if (name === "style") {
    const style = /** @type {HTMLElement} */ (element).style;
    for (const [key, text] of Object.entries(/** @type {Record<string, string>} */ (value)))
      if (style.getPropertyValue(key) !== text) style.setProperty(key, text);
  } else if (name === "value") {
    /** @type {HTMLInputElement} */ (element).value = String(value);
  } else if (name === "checked") {
    /** @type {HTMLInputElement} */ (element).checked = Boolean(value);
  } else {
    const said = typeof value === "boolean" && name.startsWith("aria-");
    const text = value === true && !said ? "" : String(value);
    if ((value ?? false) === false && !said) element.removeAttribute(name);
    else if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

/** Sets properties of an element, as `setProp` does. @param {Element} element @param {Props} props */
export function setProps(element, props) {
  for (const [name, value] of Object.entries(props)) setProp(element, name, value);
}

/**
 * @template {Element} E
 * @param {E} element
 * @param {Props | null | undefined} props
 * @param {Child[]} children  numbers are written as texts, by `append`
 * @returns {E}
 */
function furnish(element, props, children) {
  element.append(.../** @type {string[]} */ (children.filter((child) => (child ?? false) !== false)));
  setProps(element, props ?? {});
  return element;
}

/**
 * Makes an HTML element with its children; a button sends no form.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  if (tag === "button") element.setAttribute("type", "button");
  return furnish(element, props, children);
}

/**
 * Makes a part of the page that has a class and nothing else.
 * @param {string} kind  its class
 * @param {...Child} children
 * @returns {HTMLDivElement}
 */
export function div(kind, ...children) {
  return h("div", { class: kind }, ...children);
}

/** Makes a paragraph that has a class and nothing else. @param {string} kind its class @param {...Child} children */
export function para(kind, ...children) {
  return h("p", { class: kind }, ...children);
}

/** Makes a piece of a line that has no class. @param {...Child} children */
export const span = (...children) => h("span", null, ...children);

/**
 * Makes a part of the page that has a name.
 * @param {string} kind  its class
 * @param {string} name
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function section(kind, name, ...children) {
  return h("section", { class: kind, "aria-label": name }, ...children);
}

/**
 * Makes an SVG element with its children.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function svg(tag, props, ...children) {
  const element = /** @type {SVGElementTagNameMap[K]} */ (document.createElementNS(SVG_NAMESPACE, tag));
  return furnish(element, props, children);
}

/** Replaces the children of an element. @param {Element} parent @param {...Child} children */
export function fill(parent, ...children) {
  parent.replaceChildren();
  furnish(parent, null, children);
}

/**
 * Writes a text, only if it is another: screen readers say what is written again. The node of a text stays, which is
 * quicker to lay out than a new one.
 * @param {Element} element
 * @param {string} text
 */
export function say(element, text) {
  if (element.textContent === text) return;
  const { firstChild } = element;
  if (text && firstChild instanceof Text && !firstChild.nextSibling) firstChild.data = text;
  else element.textContent = text;
}

/**
 * Gives an element as many children as are wanted: the first ones stay, so that writing in them is all that is painted.
 * @template {Element} E
 * @param {Element} parent
 * @param {number} count
 * @param {(at: number) => E} make
 * @returns {E[]} all of them
 */
export function keepChildren(parent, count, make) {
  while (parent.children.length > count) parent.lastElementChild?.remove();
  while (parent.children.length < count) parent.append(make(parent.children.length));
  return /** @type {E[]} */ ([...parent.children]);
}

/** @param {unknown} error @returns {string} what went wrong, for readers */
export const reasonOf = (error) => (error instanceof Error ? error.message : String(error));

/** @returns {boolean} whether the reader asked for less movement */
export function calm() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

let madeNames = 0;

/** Returns a name for an id that no other element has. @param {string} stem @returns {string} */
export function freshId(stem) {
  madeNames += 1;
  return `convattn-${stem}-${madeNames}`;
}

/**
 * Makes a function that runs another in the next frame, once, however often it is called before.
 * @param {() => void} run
 * @returns {() => void}
 */
export function oncePerFrame(run) {
  let asked = 0;
  return () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      run();
    });
  };
}

// Arrow keys, and those that go to the ends.

/** Steps of the arrow keys: down and right. @type {Record<string, [number, number]>} */
const ARROW_STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** Tells whether a key is pressed with one that makes it the browser's. @param {KeyboardEvent} event */
export const isBrowsers = ({ altKey, ctrlKey, metaKey }) => altKey || ctrlKey || metaKey;

/**
 * Calls a function with the step of an arrow key, which then does nothing else.
 * @param {Element} target
 * @param {(step: [number, number], event: KeyboardEvent) => void} move
 */
export function followArrows(target, move) {
  target.addEventListener("keydown", (event) => {
    const key = /** @type {KeyboardEvent} */ (event);
    const step = ARROW_STEPS[key.key];
    if (!step || isBrowsers(key)) return;
    event.preventDefault();
    event.stopPropagation();
    move(step, key);
  });
}

/**
 * Returns the place that a key goes to, before it is kept within the grid: arrows, and Home, End, PageUp, PageDown to the
 * ends. The key then does nothing else.
 * @param {KeyboardEvent} event
 * @param {[number, number]} place  row and column
 * @param {number} [far]  cells that an arrow goes
 * @returns {[number, number] | undefined}
 */
export function keyTarget(event, [row, col], far = 1) {
  if (isBrowsers(event)) return undefined;
  const step = ARROW_STEPS[event.key];
  /** @type {Record<string, [number, number]>} */
  const ends = { Home: [row, 0], End: [row, Infinity], PageUp: [0, col], PageDown: [Infinity, col] };
  /** @type {[number, number] | undefined} */
  const target = step ? [row + far * step[0], col + far * step[1]] : ends[event.key];
  if (target) event.preventDefault();
  return target;
}

// Mouse, pen or finger.

/**
 * Follows a pointer over an element, from its press until it is let go.
 * @param {Element} target
 * @param {(event: PointerEvent, first: boolean) => unknown} moved  called at the press, too; if it returns false then,
 *   the pointer is not followed
 */
export function followPointer(target, moved) {
  const follow = (/** @type {Event} */ event) => {
    const pointer = /** @type {PointerEvent} */ (event);
    const first = pointer.type === "pointerdown";
    if (first ? pointer.button : !target.hasPointerCapture(pointer.pointerId)) return;
    if (moved(pointer, first) !== false && first) target.setPointerCapture(pointer.pointerId);
  };
  target.addEventListener("pointerdown", follow);
  target.addEventListener("pointermove", follow);
}

/**
 * Returns where a pointer is on an element, as shares of its height and width.
 * @param {Element} target
 * @param {PointerEvent} event
 * @returns {[number, number]}
 */
export function pointedShare(target, { clientX, clientY }) {
  const { top, left, width, height } = target.getBoundingClientRect();
  return [(clientY - top) / height, (clientX - left) / width];
}

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
