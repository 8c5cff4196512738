// The microphone: samples at the rate a network reads, from just before a voice begins.
import { joined, Resampler } from "./sound";

const LEAD_SECONDS = 0.25; // kept from before the voice: words in the training data begin about as late
const HOP_SECONDS = 0.01;
const MIN_LOUDNESS = 0.012; // root mean square that can be a voice
const ABOVE_NOISE = 3.5; // a voice is this many times as loud as the quiet before it
const LOUD_HOPS = 3; // in a row

export interface Listening {
  stop(): void;
}

/** What the browser's error means, and what to do. */
function inWords(error: unknown): Error {
  const name = error instanceof DOMException ? error.name : "";
  if (name === "NotAllowedError" || name === "SecurityError")
    return new Error("The browser may not use the microphone. Allow it beside the address, or choose a recording.");
  if (name === "NotFoundError") return new Error("There is no microphone. Choose a recording instead.");
  return new Error("The microphone cannot be used. Choose a recording instead.");
}

/** Listen: `heard` gets the samples from the beginning of a voice on, `quiet` the loudness (0…1) until then. */
export async function listen(
  rate: number,
  heard: (samples: Float32Array) => void,
  quiet: (loudness: number) => void,
): Promise<Listening> {
  if (!navigator.mediaDevices) throw new Error("This browser has no microphone here. Choose a recording instead.");
  let stream: MediaStream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({
      audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: true },
    });
  } catch (error) {
    throw inWords(error);
  }
  const stopTracks = () => stream.getTracks().forEach((track) => track.stop());
  let context: AudioContext | undefined;
  try {
    context = new AudioContext();
    await context.audioWorklet.addModule("recorder.js");
    const recorder = new AudioWorkletNode(context, "recorder");
    const resampler = new Resampler(context.sampleRate, rate);
    const onset = new Onset(rate, heard, quiet);
    recorder.port.onmessage = ({ data }: MessageEvent<Float32Array>) => onset.push(resampler.push(data));
    context.createMediaStreamSource(stream).connect(recorder).connect(context.destination); // it plays silence
    const open = context;
    return {
      stop: () => {
        recorder.port.onmessage = null;
        stopTracks();
        void open.close();
      },
    };
  } catch (error) {
    stopTracks();
    void context?.close();
    throw inWords(error);
  }
}

/** Finds the beginning of a voice. */
class Onset {
  private before: Float32Array = new Float32Array(0);
  private hop: Float32Array = new Float32Array(0);
  private noise: number | null = null;
  private loud = 0;
  private begun = false;

  constructor(
    private readonly rate: number,
    private readonly heard: (samples: Float32Array) => void,
    private readonly quiet: (loudness: number) => void,
  ) {}

  push(samples: Float32Array): void {
    if (this.begun) return this.heard(samples);
    this.before = joined([this.before, samples]);
    this.hop = joined([this.hop, samples]);
    const hop = Math.round(HOP_SECONDS * this.rate);
    for (; this.hop.length >= hop; this.hop = this.hop.slice(hop)) {
      const loudness = Math.sqrt(this.hop.slice(0, hop).reduce((sum, value) => sum + value * value, 0) / hop);
      this.noise ??= loudness;
      this.loud = loudness > Math.max(MIN_LOUDNESS, ABOVE_NOISE * this.noise) ? this.loud + 1 : 0;
      if (this.loud === 0) this.noise += (loudness < this.noise ? 0.3 : 0.03) * (loudness - this.noise);
      this.quiet(Math.min(1, loudness * 8));
      if (this.loud >= LOUD_HOPS) {
        this.begun = true;
        const kept = Math.round((LEAD_SECONDS + LOUD_HOPS * HOP_SECONDS) * this.rate) + this.hop.length;
        return this.heard(this.before.slice(-kept));
      }
    }
    const most = Math.round(2 * LEAD_SECONDS * this.rate);
    if (this.before.length > most) this.before = this.before.slice(-most);
  }
}
