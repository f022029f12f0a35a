// The page on a local server.

import { mount } from "./main.js";
import { serverSource } from "./server-source.js";

/**
 * Shows what the server holds that this page came from.
 * @returns {Promise<void>}
 */
export async function openServerPage() {
  const root = /** @type {HTMLElement} */ (document.getElementById("convattn"));
  try {
    const source = await serverSource(location.href);
    root.replaceChildren();
    mount(root, source);
  } catch (error) {
    root.textContent = `The page cannot be shown: ${error instanceof Error ? error.message : error}`;
  }
}
