import "./style.css";
import { loadRuntime, Model } from "./model";
import { OwnView, type Offer } from "./ownView";
import { SoundView, type SpeechNumbers } from "./soundView";
import { TasksView, type TaskNumbers } from "./tasksView";

interface Numbers {
  speech: SpeechNumbers;
  tasks: Record<string, TaskNumbers>;
}

const fetchJson = async <T>(url: string): Promise<T> => (await fetch(url)).json() as Promise<T>;

const numbers = fetchJson<Numbers>("numbers.json");
const view = document.querySelector<HTMLElement>("#panel-speech > .sound")!;
const copy = view.cloneNode(true) as HTMLElement; // as it was, for a network of the user's own
const sound = new SoundView(
  view,
  () => Model.fetch("models/speech-commands.onnx"),
  numbers.then((all) => all.speech),
);
const tasks = new TasksView(
  document.getElementById("panel-tasks")!,
  numbers.then((all) => all.tasks),
);
const own = new OwnView(document.getElementById("panel-own")!, () => copy.cloneNode(true) as HTMLElement);

// Tabs: arrow keys move among them, the address says which is open.

const tabs = [...document.querySelectorAll<HTMLButtonElement>("[role=tab]")];
let tasksOpen = false;

function open(tab: HTMLButtonElement): void {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", String(chosen));
    each.tabIndex = chosen ? 0 : -1;
    document.getElementById(each.getAttribute("aria-controls")!)!.hidden = !chosen;
  }
  history.replaceState(null, "", `#${tab.id.replace("tab-", "")}`);
  if (tab.id === "tab-tasks" && !tasksOpen) {
    tasksOpen = true;
    void tasks.choose("spotting");
  }
}

tabs.forEach((tab, place) => {
  tab.addEventListener("click", () => open(tab));
  tab.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = { Home: 0, End: tabs.length - 1 }[event.key] ?? (move && (place + move + tabs.length) % tabs.length);
    if (next === undefined) return;
    event.preventDefault();
    open(tabs[next]);
    tabs[next].focus();
  });
});

const named = () => tabs.find((tab) => `#${tab.id.replace("tab-", "")}` === location.hash);
open(named() ?? tabs[0]);
addEventListener("hashchange", () => open(named() ?? tabs[0]));

// A file that is dropped beside a place for files is not opened instead of the page.
for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault());

// After the first view: the runtime and the network, so that the first word does not wait for them.
requestAnimationFrame(() =>
  setTimeout(() => {
    void loadRuntime().then(() => sound.ready());
    void fetchJson<Offer | null>("offer.json").then((offer) => offer && own.offer(offer));
  }, 50),
);
