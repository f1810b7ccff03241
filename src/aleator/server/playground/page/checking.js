/** @file What the server says of a chain as it is set, asked again whenever it changes. */

import { effect, signal } from "./vendor/signals-core.mjs";
import { post } from "./api.js";

/**
 * @typedef {object} Checked
 * @property {string} chain
 * @property {{name: string, label: string, neutral: boolean}[]} samplers
 * @property {string} cli
 * @property {string} json
 * @property {string} python
 */

/**
 * Work for the newest of many wishes: one at a time, and those in between are left out.
 * @template {any[]} T
 * @param {(...given: T) => Promise<void>} work  does not throw
 */
export function latest(work) {
  let busy = false;
  /** @type {T | null} */
  let next = null;
  return async (/** @type {T} */ ...given) => {
    next = given;
    if (busy) return;
    busy = true;
    while (next) {
      const now = /** @type {T} */ (next);
      next = null;
      await work(...now);
    }
    busy = false;
  };
}

/** A chain under watch. */
export class Checking {
  /** @param {import("./settings.js").Settings} settings */
  constructor(settings) {
    this.checked = signal(/** @type {Checked | null} */ (null));
    /** Why it cannot be. */
    this.wrong = signal(/** @type {any} */ (null));
    /** Nothing is asked otherwise. */
    this.watching = signal(false);
    const ask = latest(async (/** @type {Record<string, any>} */ asked) => {
      try {
        this.checked.value = await post("/chain", asked);
        this.wrong.value = null;
      } catch (error) {
        this.wrong.value = error;
      }
    });
    effect(() => {
      const asked = settings.asked();
      if (this.watching.value) ask(asked);
    });
  }

  /** Names of the samplers that do something. */
  get active() {
    return new Set((this.checked.value?.samplers ?? []).filter((s) => !s.neutral).map((s) => s.name));
  }
}
