// Numbers in words.

/** A whole number; a half goes to the even neighbour, as in Python, so that both say the same. */
export function whole(value: number): string {
  const low = Math.floor(value);
  const even = value - low === 0.5 ? low + (low % 2) : Math.round(value);
  return even.toLocaleString("en");
}

export const percent = (share: number, digits = 0): string => `${(100 * share).toFixed(digits)} %`;

/** θ with as many digits as it needs. */
export const theta = (value: number): string => String(Number(value.toFixed(4)));

export const plural = (count: number, word: string): string =>
  `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
