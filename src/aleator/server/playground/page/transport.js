/** @file How the page asks its engine: a server, over HTTP.  A page without a server has another such file (js/site). */

const ROOT = "/api/playground";

/** Who answers, in words. */
export const WHO = "the server";

/**
 * Ask the server; the query may have the model of a server with several.
 * @param {string} path
 * @param {{method: string, headers: Record<string, string>, body?: string, signal?: AbortSignal}} asked
 */
export const send = (path, asked) => fetch(ROOT + path + location.search, asked);

/** Lets the page's user choose another model; null: whoever starts the server does. @type {any} */
export const Models = null;
