import { remoteSource } from "./remote.js";

/**
 * The page on a local server.
 *
 * @typedef {import("./source.js").Source} Source
 * @typedef {import("./source.js").RowsAsked} RowsAsked
 */

/**
 * Opens the server that this page came from.
 *
 * @param {string} base  its address
 * @returns {Promise<Source>}
 */
export async function serverSource(base) {
  const at = (/** @type {string} */ name) => new URL(name, base);
  return remoteSource({
    scene: await fetchBytes(at("scene")),
    rows: (asked) => fetchBytes(rowsAddress(at("rows"), asked)),
    again: () => fetchBytes(at("scene")),
    upload: (file) => fetchBytes(pictureAddress(at("images"), file), { method: "POST", body: file }),
  });
}

/**
 * Writes what is asked into an address.
 *
 * @param {URL} address
 * @param {RowsAsked} asked
 * @returns {URL}
 */
export function rowsAddress(address, { network, image, query, part }) {
  const place = "prefix" in query ? { prefix: query.prefix } : { row: query[0], col: query[1] };
  for (const [name, value] of Object.entries({ network, image, part, ...place }))
    address.searchParams.set(name, `${value}`);
  return address;
}

/**
 * @param {URL} address
 * @param {File} file
 * @returns {URL}
 */
function pictureAddress(address, file) {
  address.searchParams.set("name", file.name);
  return address;
}

/**
 * Fetches bytes; what the server refuses becomes an error in its words.
 *
 * @param {URL} address
 * @param {RequestInit} [request]
 * @returns {Promise<ArrayBuffer>}
 */
async function fetchBytes(address, request) {
  let answer;
  try {
    answer = await fetch(address, request);
  } catch {
    throw new Error("the server does not answer; is it still running?");
  }
  if (!answer.ok) throw new Error(await answer.text());
  return answer.arrayBuffer();
}
