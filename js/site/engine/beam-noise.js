/** @file The noise of stochastic beams (src/aleator/generate/beam_noise.py, core/philox.py). */

import constants from "../constants.js";
import { blake2b } from "./fingerprint.js";

const { GUMBEL } = constants.beams;
const ROUNDS = 10;

/** The key of a text extended by one token. */
export function follower(key, token = 0) {
  const bytes = new Uint8Array(BigUint64Array.of(key, BigInt(token)).buffer);
  const digest = blake2b(bytes, 8).match(/../g).reverse().join("");
  return BigInt(`0x${digest}`);
}

/** The upper 32 bits of the product of two words. */
function high(a, b) {
  const [ah, al, bh, bl] = [a >>> 16, a & 0xffff, b >>> 16, b & 0xffff];
  const middle = ah * bl + Math.floor((al * bl) / 0x10000);
  const other = al * bh + (middle % 0x10000);
  return ah * bh + Math.floor(middle / 0x10000) + Math.floor(other / 0x10000);
}

/** The first two words of Philox4x32-10 (Salmon et al. 2011) for a counter of four words and a 64-bit key. */
function philox([c0, c1, c2, c3], key) {
  let [k0, k1] = [Number(key & 0xffffffffn), Number(key >> 32n)];
  for (let round = 0; round < ROUNDS; round++) {
    const [a, b] = [0xd2511f53, 0xcd9e8d57];
    [c0, c1, c2, c3] = [(high(b, c2) ^ c1 ^ k0) >>> 0, Math.imul(b, c2) >>> 0, (high(a, c0) ^ c3 ^ k1) >>> 0, Math.imul(a, c0) >>> 0];
    [k0, k1] = [(k0 + 0x9e3779b9) >>> 0, (k1 + 0xbb67ae85) >>> 0];
  }
  return [c0, c1];
}

/** Standard Gumbel noise of token ids: -ln(-ln u), u the middle of one of 2^52 parts of (0, 1). */
export function gumbel(key, ids, position = 0) {
  return Float64Array.from(ids, (id) => {
    const [low, up] = philox([id, position, 0, GUMBEL], key);
    return -Math.log(-Math.log((up * 2 ** 20 + (low >>> 12) + 0.5) * 2 ** -52));
  });
}

/** Gumbel variables, conditioned on their maximum being `largest`: Kool et al. 2019, appendix B.3. */
export function withMaximum(perturbed, largest) {
  const most = perturbed.reduce((a, b) => Math.max(a, b), -Infinity);
  return perturbed.map((x) => {
    const below = x - most;
    const v = largest - x + (below > -1 ? Math.log(-Math.expm1(below)) : Math.log1p(-Math.exp(below)));
    return largest - Math.max(0, v) - Math.log1p(Math.exp(-Math.abs(v)));
  });
}
