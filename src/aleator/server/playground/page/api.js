/** @file The endpoints, described in docs/playground.md. */

import { signal } from "./vendor/signals-core.mjs";
import { WHO, send } from "./transport.js";

/** Whether the server answered when it was last asked. */
export const online = signal(true);
/** The server wants a key. */
export const locked = signal(false);

/** An error in the server's words. */
export class ServerError extends Error {
  /**
   * @param {string} message
   * @param {{param?: string | null, code?: string | null, line?: number, column?: number}} details
   * @param {number} status
   */
  constructor(message, details = {}, status = 0) {
    super(message);
    this.param = details.param ?? null;
    this.code = details.code ?? null;
    this.line = details.line ?? 0;
    this.column = details.column ?? 0;
    this.status = status;
  }
}

function headers() {
  const key = sessionStorage.getItem("aleator-key");
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

/** @param {Response} response */
async function failure(response) {
  if (response.status === 401) locked.value = true;
  let details = {};
  try {
    details = (await response.json()).error ?? {};
  } catch {
    // not JSON: what HTTP says must do
  }
  const message = /** @type {any} */ (details).message ?? `${WHO} answered ${response.status} ${response.statusText}`;
  return new ServerError(message, details, response.status);
}

/**
 * @param {string} path
 * @param {string} method
 * @param {object} [body]
 * @param {AbortSignal} [abort]
 */
async function ask(path, method, body, abort) {
  let response;
  try {
    response = await send(path, {
      method,
      headers: headers(),
      body: body ? JSON.stringify(body) : undefined,
      signal: abort,
    });
  } catch (error) {
    if (abort?.aborted) throw error;
    online.value = false;
    throw new ServerError(`${WHO} does not answer: is it still running?`);
  }
  online.value = true;
  if (!response.ok) throw await failure(response);
  return response;
}

/** @param {string} path */
export const get = async (path) => (await ask(path, "GET")).json();

/**
 * @param {string} path
 * @param {object} body
 * @param {AbortSignal} [abort]
 */
export const post = async (path, body, abort) => (await ask(path, "POST", body, abort)).json();

/**
 * A file that is made for a request.
 * @param {string} path
 * @param {object} body
 */
export const file = async (path, body) => (await ask(path, "POST", body)).blob();

/** Use another key from now on. @param {string} key */
export function useKey(key) {
  if (key) sessionStorage.setItem("aleator-key", key);
  else sessionStorage.removeItem("aleator-key");
  locked.value = false;
}

/** Whether a key is used. */
export const hasKey = () => sessionStorage.getItem("aleator-key") !== null;

/** @param {string} path */
export const remove = async (path) => void (await ask(path, "DELETE"));

/**
 * The lines of a stream as they come.
 * @param {string} path
 * @param {object} body
 * @param {AbortSignal} abort
 * @returns {AsyncGenerator<any>}
 */
export async function* stream(path, body, abort) {
  const response = await ask(path, "POST", body, abort);
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (abort.aborted) return;
      online.value = false;
      throw new ServerError(`${WHO} went away while it was writing`);
    }
    held += decoder.decode(piece.value, { stream: !piece.done });
    const lines = held.split("\n");
    held = /** @type {string} */ (lines.pop());
    for (const line of lines) {
      const event = JSON.parse(line);
      if (event.event === "error") throw new ServerError(event.error.message, event.error);
      yield event;
    }
    if (piece.done) return;
  }
}
