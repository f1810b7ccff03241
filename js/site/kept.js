/** @file Model files that the browser keeps for this page, in its own part of the disk (OPFS). */

// @ts-expect-error: the package stands beside the page
import { forgetModel, keptModels } from "./aleator/kept.js";

export { forgetModel };

/** What the package keeps of downloads, whole or in part. @returns {Promise<{name: string, url: string}[]>} */
export async function downloads() {
  return (await keptModels()).map((/** @type {{url: string}} */ { url }) => ({ name: url.split("/").at(-1) ?? url, url }));
}

/** A folder of its own: other pages of the site may keep files too. */
const folder = async () => (await navigator.storage.getDirectory()).getDirectoryHandle("aleator-models", { create: true });

/** Their names; none where a browser keeps no files. @returns {Promise<string[]>} */
export async function names() {
  const found = [];
  try {
    for await (const name of /** @type {any} */ (await folder()).keys()) found.push(name);
  } catch {
    // a private window, or an old browser
  }
  return found;
}

/** @param {string} name @returns {Promise<File>} */
export const file = async (name) => (await (await folder()).getFileHandle(name)).getFile();

/** @param {string} name */
export const forget = async (name) => (await folder()).removeEntry(name);

/** Copy a file; one that does not fit leaves nothing. @param {File} given */
export async function keep(given) {
  const handle = await (await folder()).getFileHandle(given.name, { create: true });
  try {
    await given.stream().pipeTo(await handle.createWritable());
  } catch (error) {
    await forget(given.name);
    throw error;
  }
}
