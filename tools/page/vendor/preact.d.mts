/** What the page uses of Preact. */
export type Child = unknown;
export function h(type: any, props: Record<string, any> | null, ...children: Child[]): any;
export function render(node: any, into: Element): void;
export class Component<P = any, S = any> {
  props: any;
  state: any;
  [own: string]: any;
  constructor(props?: P);
  setState(state: Partial<S> | any): void;
}
