// When a sequence is answered, decided from the probabilities of the steps that were computed.
import type { About, Reading } from "./model";

export interface Decision {
  label: number;
  steps: number; // read when the answer was given: 1…length
  fired: boolean; // false: the end came first
  probability: number;
}

/** Whether θ of the rule can be changed here: it is a constant threshold on probabilities. */
export const hasThreshold = (about: About): boolean =>
  about.rule.kind === "Threshold" && about.activation !== "membrane";

const largest = (values: Float32Array, allowed?: number[] | null): number =>
  (allowed ?? [...values.keys()]).reduce((best, label) => (values[label] > values[best] ? label : best));

/** The decision after `known` steps of one row; null: there is none yet. `theta` null: the rule inside the file. */
export function decide(
  about: About,
  probabilities: Float32Array[],
  fired: boolean[],
  theta: number | null,
  ended: boolean,
): Decision | null {
  const classes = about.rule.classes;
  const limit = theta === null ? 0 : Math.fround(theta); // probabilities are float32
  for (const [place, values] of probabilities.entries()) {
    const mayFire = !about.checkpoints || about.checkpoints.includes(place + 1);
    const label = largest(values, classes);
    if (theta === null ? fired[place] : mayFire && values[label] >= limit)
      return { label, steps: place + 1, fired: true, probability: values[label] };
  }
  const steps = probabilities.length;
  if (!ended || steps === 0) return null;
  const label = largest(probabilities[steps - 1]);
  return { label, steps, fired: false, probability: probabilities[steps - 1][label] };
}

export const decision = (about: About, reading: Reading, theta: number | null, ended: boolean): Decision | null =>
  decide(about, reading.probabilities, reading.fired, theta, ended);
