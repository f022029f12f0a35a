// The page on a local server, which computes the rows that the page cannot.

import { reasonOf } from "./dom.js";
import { mount, pageRoot } from "./page.js";
import { decodeLevels, findQuery, rowsInPage, makeSource, spreadRow } from "./rows.js";
import { bytesOf, floatsOf, openScene, readSafetensors } from "./scene.js";

/** @import { LayerRows, RowsRequest, Source } from "./rows.js" */
/** @import { Scene } from "./scene.js" */

/** Opens the server that this page came from. @param {string} base its address @returns {Promise<Source>} */
export async function serverSource(base) {
  const scene = openScene(await fetchBytes(new URL("scene", base)));
  return makeSource(scene, (asked) => askRows(scene, base, asked));
}

/**
 * Computes in the page what can be, and asks the server for the rest: `{layer}/levels` (heads, keys), `scales` and `lows`
 * (heads). Own images are in the page alone.
 * @param {Scene} scene
 * @param {string} base
 * @param {RowsRequest} asked
 * @returns {Promise<LayerRows[]>}
 */
async function askRows(scene, base, asked) {
  const { layers } = scene.networks[asked.network];
  const here = rowsInPage(scene, asked);
  const elsewhere = layers.some(({ attention }) => attention.kind === "maps" && !attention.stored);
  if (!elsewhere || (asked.image !== "mean" && scene.images[asked.image].own)) return here;
  const answer = readSafetensors(await fetchBytes(rowsAddress(base, asked))).tensors;
  const came = layers.flatMap((layer, number) => {
    const levels = answer.get(`${number}/levels`);
    const found = levels && findQuery(scene, layer, asked.query);
    if (!found) return [];
    const lows = answer.has(`${number}/lows`) ? floatsOf(answer, `${number}/lows`) : null;
    const row = decodeLevels(bytesOf(answer, `${number}/levels`), floatsOf(answer, `${number}/scales`), lows);
    return [spreadRow(scene, layer, number, found, row)];
  });
  return [...here, ...came].sort((one, other) => one.layer - other.layer);
}

/** Writes what is asked into an address. @param {string} base @param {RowsRequest} asked @returns {URL} */
export function rowsAddress(base, { network, image, query, part }) {
  const address = new URL("rows", base);
  const place = "prefix" in query ? query : { row: query[0], col: query[1] };
  for (const [name, value] of Object.entries({ network, image, part, ...place }))
    address.searchParams.set(name, `${value}`);
  return address;
}

/** Fetches bytes; what the server refuses becomes an error in its words. @param {URL} address @returns {Promise<ArrayBuffer>} */
async function fetchBytes(address) {
  let answer;
  try {
    answer = await fetch(address);
  } catch {
    throw new Error("the server does not answer; is it still running?");
  }
  if (!answer.ok) throw new Error(await answer.text());
  return answer.arrayBuffer();
}

/** Shows what the server holds that this page came from. */
export async function openServerPage() {
  try {
    mount(await serverSource(location.href));
  } catch (error) {
    pageRoot().textContent = `The page cannot be shown: ${reasonOf(error)}`;
  }
}
