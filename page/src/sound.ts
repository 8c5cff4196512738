// Sound: WAV files read and written exactly, other files through the browser, other sample rates, log-mel frames.

export interface Recording {
  samples: Float32Array; // one channel, −1…1
  rate: number;
}

const tag = (view: DataView, at: number): string =>
  String.fromCharCode(...[0, 1, 2, 3].map((place) => view.getUint8(at + place)));

type Reader = (view: DataView, at: number) => number;
const READERS: Record<string, [bytes: number, read: Reader]> = {
  "1/8": [1, (view, at) => (view.getUint8(at) - 128) / 128],
  "1/16": [2, (view, at) => view.getInt16(at, true) / 32768],
  "1/24": [3, (view, at) => (view.getInt8(at + 2) * 65536 + view.getUint16(at, true)) / 8388608],
  "1/32": [4, (view, at) => view.getInt32(at, true) / 2147483648],
  "3/32": [4, (view, at) => view.getFloat32(at, true)],
  "3/64": [8, (view, at) => view.getFloat64(at, true)],
};

/** The samples of a WAV file, channels averaged; null: it is another kind of file. */
export function readWav(bytes: ArrayBuffer): Recording | null {
  const view = new DataView(bytes);
  if (bytes.byteLength < 12 || tag(view, 0) !== "RIFF" || tag(view, 8) !== "WAVE") return null;
  let format: { kind: number; channels: number; rate: number; bits: number } | null = null;
  for (let at = 12; at + 8 <= bytes.byteLength;) {
    const name = tag(view, at);
    const length = view.getUint32(at + 4, true);
    const start = at + 8;
    if (name === "fmt " && length >= 16 && start + length <= bytes.byteLength) {
      const kind = view.getUint16(start, true);
      format = {
        kind: kind === 0xfffe && length >= 26 ? view.getUint16(start + 24, true) : kind,
        channels: view.getUint16(start + 2, true),
        rate: view.getUint32(start + 4, true),
        bits: view.getUint16(start + 14, true),
      };
    }
    if (name === "data") {
      const reader = format && READERS[`${format.kind}/${format.bits}`];
      if (!format || !reader) return null; // a compressed WAV: the browser may know it
      if (format.channels < 1 || format.rate < 1000 || format.rate > 1e6) throw new Error("its header is damaged");
      if (length < 0x7ffff000 && start + length > bytes.byteLength) throw new Error("it is cut short");
      const [width, read] = reader;
      const count = Math.floor(Math.min(length, bytes.byteLength - start) / (width * format.channels));
      const samples = new Float32Array(count);
      for (let index = 0; index < count; index++) {
        let sum = 0;
        for (let channel = 0; channel < format.channels; channel++)
          sum += Math.fround(read(view, start + width * (index * format.channels + channel)));
        samples[index] = sum / format.channels;
      }
      return { samples, rate: format.rate };
    }
    at = start + length + (length % 2);
  }
  throw new Error("it is cut short");
}

/** A file of any kind that the browser reads, at this sample rate. */
export async function readSound(bytes: ArrayBuffer, rate: number): Promise<Float32Array> {
  if (bytes.byteLength === 0) throw new Error("it is empty");
  let found = readWav(bytes);
  if (!found) {
    let decoded: AudioBuffer;
    try {
      decoded = await new OfflineAudioContext(1, 1, rate).decodeAudioData(bytes.slice(0));
    } catch {
      throw new Error("it is not sound that this browser can read");
    }
    const samples = new Float32Array(decoded.length);
    for (let channel = 0; channel < decoded.numberOfChannels; channel++)
      decoded.getChannelData(channel).forEach((value, at) => (samples[at] += value / decoded.numberOfChannels));
    found = { samples, rate: decoded.sampleRate };
  }
  if (!found.samples.every(Number.isFinite)) throw new Error("it holds NaN or infinity");
  const resampler = new Resampler(found.rate, rate);
  const samples = joined([resampler.push(found.samples), resampler.finish()]);
  if (samples.length === 0) throw new Error("it holds no samples");
  return samples;
}

export function joined(parts: Float32Array[]): Float32Array {
  const all = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** A WAV file of 32-bit floats: exactly these samples. */
export function writeWav(samples: Float32Array, rate: number): Blob {
  const header = new DataView(new ArrayBuffer(44));
  const text = (at: number, value: string) =>
    [...value].forEach((each, place) => header.setUint8(at + place, each.charCodeAt(0)));
  text(0, "RIFF");
  header.setUint32(4, 36 + 4 * samples.length, true);
  text(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 3, true);
  header.setUint16(22, 1, true);
  header.setUint32(24, rate, true);
  header.setUint32(28, 4 * rate, true);
  header.setUint16(32, 4, true);
  header.setUint16(34, 32, true);
  text(36, "data");
  header.setUint32(40, 4 * samples.length, true);
  return new Blob([header.buffer, new Float32Array(samples)], { type: "audio/wav" });
}

/** Play samples where the browser allows it. */
export function hear(samples: Float32Array, rate: number): { stop(): void } | null {
  try {
    const context = new AudioContext();
    const buffer = context.createBuffer(1, samples.length, rate);
    buffer.copyToChannel(new Float32Array(samples), 0);
    const source = new AudioBufferSourceNode(context, { buffer });
    source.connect(context.destination);
    source.onended = () => void context.close();
    source.start();
    return { stop: () => source.stop() };
  } catch {
    return null;
  }
}

const ZERO_CROSSINGS = 24; // of the kernel on each side of a sample
const PASSED = 0.94; // share of the lower Nyquist frequency

/** Samples at another rate, as they come: a sinc kernel under a Hann window. */
export class Resampler {
  private held: Float32Array = new Float32Array(0);
  private first = 0; // place of the first held sample in the stream
  private made = 0;
  private readonly cutoff: number; // as a share of the input's rate
  private readonly half: number;

  constructor(
    private readonly from: number,
    private readonly to: number,
  ) {
    this.cutoff = (PASSED * Math.min(from, to)) / from;
    this.half = Math.ceil(ZERO_CROSSINGS / this.cutoff);
  }

  push(samples: Float32Array): Float32Array {
    if (this.from === this.to) return samples;
    this.held = joined([this.held, samples]);
    return this.make(this.first + this.held.length - this.half);
  }

  finish(): Float32Array {
    if (this.from === this.to) return new Float32Array(0);
    const end = this.first + this.held.length;
    this.held = joined([this.held, new Float32Array(this.half + 1)]);
    return this.make(end);
  }

  /** The output samples that lie before this place of the input. */
  private make(end: number): Float32Array {
    const step = this.from / this.to;
    const made: number[] = [];
    for (; this.made * step < end; this.made++) {
      const centre = this.made * step;
      let sum = 0;
      const begin = Math.max(this.first, Math.ceil(centre - this.half));
      for (let place = begin; place <= centre + this.half; place++) {
        const distance = place - centre;
        const angle = Math.PI * distance * this.cutoff;
        const sinc = distance === 0 ? 1 : Math.sin(angle) / angle;
        sum += this.held[place - this.first] * sinc * (0.5 + 0.5 * Math.cos((Math.PI * distance) / this.half));
      }
      made.push(sum * this.cutoff);
    }
    const keep = Math.max(this.first, Math.floor(this.made * step - this.half));
    this.held = this.held.slice(keep - this.first);
    this.first = keep;
    return Float32Array.from(made);
  }
}

const LOWEST = Math.log(1e-6);
const HIGHEST = 8;

/** Log-mel frames as `rankcode.LogMel` makes them, 0…1, for the picture. */
export class LogMel {
  private readonly window: number;
  private readonly cosine: Float64Array;
  private readonly hamming: Float64Array;
  private readonly filters: Float64Array[];

  constructor(
    rate: number,
    bands: number,
    private readonly hop: number,
  ) {
    this.window = rate / 40;
    const turn = (2 * Math.PI) / this.window;
    this.cosine = Float64Array.from({ length: this.window }, (_, place) => Math.cos(turn * place));
    this.hamming = this.cosine.map((value) => 0.54 - 0.46 * value);
    const highest = 2595 * Math.log10(1 + rate / 2 / 700);
    const edge = (place: number) => 700 * (10 ** ((highest * place) / (bands + 1) / 2595) - 1);
    this.filters = Array.from({ length: bands }, (_, band) => {
      const [low, centre, high] = [edge(band), edge(band + 1), edge(band + 2)];
      return Float64Array.from({ length: this.window / 2 + 1 }, (_, bin) => {
        const hertz = (bin * rate) / this.window;
        return Math.max(0, Math.min((hertz - low) / (centre - low), (high - hertz) / (high - centre)));
      });
    });
  }

  /** Frame `number`, centred on sample `number` · hop, with silence outside of the recording. */
  frame(samples: Float32Array, number: number): Float32Array {
    const size = this.window;
    const start = number * this.hop - size / 2;
    const values = this.hamming.map((weight, place) => weight * (samples[start + place] ?? 0));
    const power = new Float64Array(size / 2 + 1);
    const quarter = (3 * size) / 4; // sin x = cos(x + 3/4 of a turn)
    for (let bin = 0; bin < power.length; bin++) {
      let [real, imaginary] = [0, 0];
      for (let place = 0, angle = 0; place < size; place++, angle = (angle + bin) % size) {
        real += values[place] * this.cosine[angle];
        imaginary += values[place] * this.cosine[(angle + quarter) % size];
      }
      power[bin] = real * real + imaginary * imaginary;
    }
    return Float32Array.from(this.filters, (filter) => {
      const sum = filter.reduce((total, weight, bin) => total + weight * power[bin], 0);
      return Math.min(1, Math.max(0, (Math.log(sum + 1e-6) - LOWEST) / (HIGHEST - LOWEST)));
    });
  }
}
