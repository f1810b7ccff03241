/** What the page uses of signals-core. */
export interface Signal<T> {
  value: T;
}
export function signal<T>(value: T): Signal<T>;
export function effect(run: () => void): () => void;
