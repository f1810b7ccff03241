/** @file A model file's fingerprint, the one that Python's package has (src/aleator/models/fingerprint.py). */

import { native } from "../aleator/index.js";

const BLOCK = 4 << 20;
const SIZE = 16;
const WORD = (1n << 64n) - 1n;
const BEGIN = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const ORDER = [
  "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
  "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
].map((row) => [...row].map((digit) => parseInt(digit, 16)));
const PLACES = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]];
const ROUNDS = 12;

const turned = (x, n) => ((x >> n) | (x << (64n - n))) & WORD;

/** BLAKE2b (RFC 7693) without a key. */
export function blake2b(bytes, size) {
  const h = [...BEGIN];
  h[0] ^= 0x01010000n ^ BigInt(size);
  const count = Math.max(1, Math.ceil(bytes.length / 128));
  for (let block = 0; block < count; block++) {
    const part = new Uint8Array(128);
    part.set(bytes.subarray(128 * block, 128 * block + 128));
    const m = new BigUint64Array(part.buffer);
    const last = block === count - 1;
    const v = [...h, ...BEGIN];
    v[12] ^= BigInt(last ? bytes.length : 128 * (block + 1));
    if (last) v[14] ^= WORD;
    for (let round = 0; round < ROUNDS; round++) {
      const order = ORDER[round % 10];
      PLACES.forEach(([a, b, c, d], i) => {
        for (const [word, right, left] of [[order[2 * i], 32n, 24n], [order[2 * i + 1], 16n, 63n]]) {
          v[a] = (v[a] + v[b] + m[word]) & WORD;
          v[d] = turned(v[d] ^ v[a], right);
          v[c] = (v[c] + v[d]) & WORD;
          v[b] = turned(v[b] ^ v[c], left);
        }
      });
    }
    h.forEach((word, i) => (h[i] = word ^ v[i] ^ v[i + 8]));
  }
  const made = new Uint8Array(BigUint64Array.from(h).buffer, 0, size);
  return Array.from(made, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The fingerprint of a GGUF file in the native code's memory. */
export function fingerprint(data) {
  const hashes = native.xxh64_blocks(data, BigInt(BLOCK), 0);
  const head = new TextEncoder().encode(`4 gguf ${data.length} `);
  const bytes = new Uint8Array(head.length + hashes.byteLength);
  bytes.set(head);
  bytes.set(new Uint8Array(hashes.buffer, hashes.byteOffset, hashes.byteLength), head.length);
  return blake2b(bytes, SIZE);
}
