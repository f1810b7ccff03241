// Keeps the files of the page, so that it opens without a network, and isolates it, so that its engine may have threads
// (js/README.md).  make site writes the names of the files and their version, the hash of all of them, before this.
/* global VERSION, FILES */

const MINE = "aleator-page-";

addEventListener("install", (event) => {
  const keep = async () => {
    // Asked for again: what the browser has of an earlier version may still count as fresh.
    await (await caches.open(MINE + VERSION)).addAll(FILES.map((name) => new Request(name, { cache: "no-cache" })));
    await skipWaiting();
  };
  event.waitUntil(keep());
});

addEventListener("activate", (event) => {
  const use = async () => {
    const old = (await caches.keys()).filter((name) => name.startsWith(MINE) && name !== MINE + VERSION);
    await Promise.all(old.map((name) => caches.delete(name)));
    await clients.claim();
  };
  event.waitUntil(use());
});

const isolated = (answer) => {
  if (answer.type !== "basic") return answer; // of another site: its address is to be seen (ranges.js), or it is closed
  const headers = new Headers(answer.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  return new Response(answer.body, { status: answer.status, statusText: answer.statusText, headers });
};

addEventListener("fetch", (event) => {
  const answer = async () => (await (await caches.open(MINE + VERSION)).match(event.request, { ignoreSearch: true })) ?? fetch(event.request);
  event.respondWith(answer().then(isolated));
});
