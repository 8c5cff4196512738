// Exported networks: their metadata, and reading sequences step by step with onnxruntime-web.
import type * as Ort from "onnxruntime-web/wasm";
import wasmUrl from "onnxruntime-web/ort-wasm-simd-threaded.wasm?url";

type Dtype = "float32" | "float64" | "int64" | "bool";
const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array, bool: Uint8Array };

export interface Sound {
  sample_rate: number;
  hop: number;
  window: number;
  look_ahead: number;
  silence_before: number;
}

/** The metadata of an exported file: docs/export.md. */
export interface About {
  labels: string[];
  activation: string;
  rule: { kind: string; threshold?: number; classes?: number[] | null };
  checkpoints: number[] | null;
  x: { shape: number[]; dtype: "float32" | "float64"; raw: boolean };
  state: { name: string; new: string; shape: number[]; dtype: Dtype }[];
  warm_up: number;
  front_end: { kind: string; log_mel?: { n_mels: number }; [key: string]: unknown } | null;
  sound?: Sound;
}

export const size = (shape: number[]): number => shape.reduce((a, b) => a * b, 1);

const FOREIGN = "This file was not exported by rankcode. Make one with: rankcode export RUN model.onnx";
const BEGINNING = '{"rankcode": {'; // of the metadata, which is the end of the file

export function readAbout(bytes: Uint8Array): About {
  const text = new TextDecoder("latin1").decode(bytes);
  const start = text.lastIndexOf(BEGINNING);
  if (start < 0) throw new Error(FOREIGN);
  try {
    const about = JSON.parse(text.slice(start)) as About;
    if (!about.labels.length || !about.state.length || !about.x.shape || !about.rule.kind) throw new Error();
    return about;
  } catch {
    throw new Error("The end of this file is damaged: export the network again.");
  }
}

let runtime: Promise<typeof Ort> | undefined;

/** onnxruntime-web, loaded when it is first needed. */
export function loadRuntime(): Promise<typeof Ort> {
  runtime ??= import("onnxruntime-web/wasm").then((ort) => {
    ort.env.wasm.numThreads = 1; // steps of these networks take less time than waking a thread
    ort.env.wasm.wasmPaths = { wasm: wasmUrl };
    ort.env.logLevel = "error";
    return ort;
  });
  return runtime;
}

let last: Promise<unknown> = Promise.resolve();

/** Run one after the other: the runtime does one thing at a time. */
function inTurn<T>(work: () => Promise<T>): Promise<T> {
  const result = last.then(work);
  last = result.catch(() => undefined);
  return result;
}

export class Model {
  private constructor(
    readonly about: About,
    readonly bytes: number,
    readonly ort: typeof Ort,
    readonly session: Ort.InferenceSession,
  ) {}

  static async of(bytes: Uint8Array): Promise<Model> {
    const about = readAbout(bytes);
    const ort = await loadRuntime();
    try {
      const session = await inTurn(() => ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] }));
      return new Model(about, bytes.length, ort, session);
    } catch {
      throw new Error("This file cannot be loaded: it is damaged, or uses operators that browsers do not have.");
    }
  }

  static async fetch(url: string): Promise<Model> {
    const [answer] = await Promise.all([fetch(url), loadRuntime()]);
    if (!answer.ok) throw new Error(`The network could not be loaded (${answer.status}).`);
    return Model.of(new Uint8Array(await answer.arrayBuffer()));
  }

  get classes(): number {
    return this.about.labels.length;
  }

  begin(rows = 1): Reading {
    return new Reading(this, rows);
  }
}

/** One sequence, or several of equal length, that a network reads. Each step is computed once and kept. */
export class Reading {
  /** By step: [rows · classes]. */
  readonly probabilities: Float32Array[] = [];
  readonly fired: boolean[] = []; // of the first row, as the rule inside the file says
  private calls = 0;
  private state: Record<string, Ort.Tensor>;

  constructor(
    private readonly model: Model,
    private readonly rows: number,
  ) {
    const { ort, about } = model;
    this.state = Object.fromEntries(
      about.state.map(({ name, shape, dtype }) => {
        const zeros = new ARRAYS[dtype](rows * size(shape));
        return [name, new ort.Tensor(dtype, zeros as Float32Array, [rows, ...shape])];
      }),
    );
  }

  /** Steps that were computed. */
  get steps(): number {
    return this.probabilities.length;
  }

  /** Calls of the network, those that complete no step included. */
  get hops(): number {
    return this.calls;
  }

  /** Give the next values: [rows · values of a step]. */
  async read(values: ArrayLike<number>): Promise<void> {
    const { ort, about, session } = this.model;
    const data = ARRAYS[about.x.dtype].from(values as ArrayLike<never>) as Float32Array;
    const x = new ort.Tensor(about.x.dtype, data, [this.rows, ...about.x.shape]);
    const out = await inTurn(() => session.run({ x, ...this.state }));
    this.state = Object.fromEntries(about.state.map((part) => [part.name, out[part.new] as Ort.Tensor]));
    this.calls += 1;
    if (this.calls > about.warm_up) {
      this.probabilities.push(out.probabilities.data as Float32Array);
      this.fired.push(Boolean(out.fired.data[0]));
    }
  }
}
