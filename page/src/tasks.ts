// The paper's generated tasks, drawn as in rankcode.tasks.

export interface Sequence {
  values: number[];
  label: number;
  remark: string; // what the network is not told
}

/** A number that float32 and a table with four digits hold alike. */
const rounded = (value: number): number => Math.round(value * 1e4) / 1e4;

function normal(): number {
  return Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
}

export const RUN = 5;

export function longestRun(values: number[]): number {
  let [longest, run] = [0, 0];
  values.forEach((value, place) => {
    run = place && value === values[place - 1] ? run + 1 : 1;
    longest = Math.max(longest, run);
  });
  return longest;
}

/** Coin flips; positive: there is a run of five equal ones. */
export function spotting(values?: number[]): Sequence {
  const flips = values ?? Array.from({ length: 25 }, () => Number(Math.random() < 0.5));
  const longest = longestRun(flips);
  return { values: flips, label: Number(longest >= RUN), remark: `the longest run is ${longest}` };
}

/** Noise around +0.05 or −0.05, of a standard deviation that differs from sequence to sequence. */
export function twoSequence(): Sequence {
  const label = Number(Math.random() < 0.5);
  const deviation = 0.05 + 0.2 * Math.random();
  const centre = 0.05 * (2 * label - 1);
  const values = Array.from({ length: 40 }, () => rounded(centre + deviation * normal()));
  return { values, label, remark: `the noise has a standard deviation of ${deviation.toFixed(2)}` };
}
