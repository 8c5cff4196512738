// Finding elements, and files that are dropped or chosen.

/** The element with this data-part attribute. */
export function part<T extends Element = HTMLElement>(root: ParentNode, name: string): T {
  const found = root.querySelector<T>(`[data-part="${name}"]`);
  if (!found) throw new Error(`the page has no part ${name}`);
  return found;
}

/** Set a text only where it changes, so that screen readers are not told twice. */
export function say(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** A copy of a template. */
export function copyOf(id: string): HTMLElement {
  const template = document.getElementById(id) as HTMLTemplateElement;
  return template.content.firstElementChild!.cloneNode(true) as HTMLElement;
}

/** Call `open` with a file that is chosen with the input, or dropped on the element. */
export function acceptFiles(zone: HTMLElement, input: HTMLInputElement, open: (file: File) => void): void {
  input.addEventListener("change", () => {
    if (input.files?.[0]) open(input.files[0]);
    input.value = ""; // the same file can be chosen again
  });
  const over = (on: boolean) => (event: DragEvent) => {
    event.preventDefault();
    zone.classList.toggle("dropping", on);
  };
  zone.addEventListener("dragover", over(true));
  zone.addEventListener("dragleave", over(false));
  zone.addEventListener("drop", (event) => {
    over(false)(event);
    const file = event.dataTransfer?.files[0];
    if (file) open(file);
  });
}

export const reducedMotion = (): boolean => matchMedia("(prefers-reduced-motion: reduce)").matches;

export const message = (error: unknown): string => (error instanceof Error ? error.message : String(error));
