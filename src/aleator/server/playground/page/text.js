/** @file Texts and their branches, with the steps that are known of them; where they come from is others' work. */

import { signal } from "./vendor/signals-core.mjs";

/**
 * @typedef {import("./token.js").Token} Token
 * @typedef {object} Step  as a line of the stream
 * @property {number} step
 * @property {Token} token
 * @property {boolean} picked
 * @property {number} before  null where logits are not kept; so are the next ones
 * @property {number | null} after
 * @property {number} entropy
 * @property {number} entropy_after
 * @property {number} left
 * @property {{name: string, left: number, removed: number, cut: number, moved: number, entropy: number}[]} stages
 * @property {{token: Token, before: number, after: number}[]} top
 */

/** One text, or branch of one. */
export class Text {
  /**
   * @param {Record<string, any>} asked  the request
   * @param {Text | null} parent
   * @param {string} name
   */
  constructor(asked, parent, name) {
    this.asked = asked;
    this.parent = parent;
    this.name = signal(name);
    this.id = "";
    this.at = 0;
    /** @type {Token[]} */
    this.prompt = [];
    /** @type {Step[]} */
    this.steps = [];
    this.inherited = 0;
    this.seed = 0;
    this.abort = new AbortController();
    /** "writing", or why it ended */
    this.reason = signal("writing");
    this.error = signal(/** @type {Error | null} */ (null));
    /** Grows with each event. */
    this.version = signal(0);
    /** @type {any} */
    this.end = null;
  }

  get writing() {
    return this.reason.value === "writing";
  }

  /** The request that writes its own part again. @returns {Record<string, any>} */
  get own() {
    const { parent, at, ...asked } = this.asked;
    return { ...asked, ...(this.parent ? { at: this.at } : {}), seed: this.seed, max_tokens: Math.max(1, this.steps.length - this.inherited) };
  }

  /** What the page must know to write it again: one entry per text it branches off. @returns {Record<string, any>[]} */
  get path() {
    return [...(this.parent?.path ?? []), this.own];
  }

  /** Be written again by this GBNF, which the engine has made of a JSON schema or a regular expression. @param {string} grammar */
  obey(grammar) {
    const { json_schema, regex, ...asked } = this.asked;
    this.asked = { ...asked, grammar };
  }

  stop() {
    this.abort.abort();
  }
}

/** All texts, in order of their beginning. */
export const texts = signal(/** @type {Text[]} */ ([]));
/** The one that is shown. */
export const current = signal(/** @type {Text | null} */ (null));
/** The step that is open; -1: none. */
export const opened = signal(-1);

/** The first step at which two texts differ; -1: at none. @param {Text | null} a @param {Text | null} b */
export function diverges(a, b) {
  const [one, other] = [a?.steps ?? [], b?.steps ?? []];
  const n = Math.max(one.length, other.length);
  for (let i = 0; i < n; i++) if (one[i]?.token.id !== other[i]?.token.id) return i;
  return -1;
}

/** What constrains a text; its samplers' names. */
export const CONSTRAINTS = ["grammar", "json_schema", "regex"];

/** Tokens that the constraint left at a step; null: nothing constrains it. @param {Step} step */
export const allowed = (step) => step.stages.find((stage) => CONSTRAINTS.includes(stage.name))?.left ?? null;
