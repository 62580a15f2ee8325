// The page of a task: copy, fold JSON, follow the log, and send the task again with edited arguments.
import { post, toast } from "./actions.js";

const base = document.documentElement.dataset.base;

// Browsers give pages the clipboard over HTTPS and on this machine only.
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

async function copyFrom(button) {
  const label = button.textContent;
  const text = button.dataset.copyText ?? button.parentElement.querySelector("pre").textContent;
  try {
    await copy(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

function fold(button) {
  const part = button.parentElement, folded = part.classList.toggle("folded");
  part.dataset.mine = "1"; // live updates leave it as the viewer set it
  button.dataset.own = "aria-expanded";
  button.setAttribute("aria-expanded", String(!folded));
}

// A log that was scrolled to its end stays there when lines come.
function follow() {
  for (const log of document.querySelectorAll("[data-follow]")) {
    if (!log.dataset.own) {
      log.dataset.own = "data-own";
      log.addEventListener("scroll", () => (log.atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4));
      log.atEnd = true;
    }
    if (log.atEnd) log.scrollTop = log.scrollHeight;
  }
}

// JSON.parse would round numbers with more than 15 digits, so a text with such numbers is not reformatted.
export function pretty(text) {
  try {
    return /\d{16}/.test(text) || text.length > 100000 ? text : JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export const element = (name, values, ...children) => {
  const made = Object.assign(document.createElement(name), values);
  made.append(...children);
  return made;
};

// The dialog stays open with what was typed until the task is sent or the viewer closes it.
export function compose({ heading, prompt, text, before = [], path, body, confirm = "Send", done }) {
  const dialog = document.getElementById("ask");
  const area = element("textarea", { id: "compose-arguments", value: text, rows: Math.min(20, text.split("\n").length + 2), spellcheck: false });
  const refusal = element("p", { className: "refusal", hidden: true });
  refusal.setAttribute("role", "alert");
  const send = element("button", { className: "act primary", value: "yes", textContent: confirm });
  const back = element("button", { className: "act", type: "button", textContent: "Go back" });
  const title = element("h2", { id: "compose-title", textContent: heading });
  const label = element("label", { htmlFor: area.id, textContent: prompt });
  const form = element("form", {}, title, ...before, label, area, refusal, element("div", { className: "acts" }, back, send));
  back.addEventListener("click", () => dialog.close("no"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    refusal.hidden = true;
    try {
      JSON.parse(area.value);
      const reply = await post(path, body(area.value));
      if (!done) return location.assign(`${base}/tasks/${reply.task_id}`);
      dialog.close("yes");
      done(reply);
    } catch (error) {
      refusal.textContent = error instanceof SyntaxError ? `The arguments are no JSON: ${error.message}` : error.message;
      refusal.hidden = false;
      area.focus();
    } finally {
      send.disabled = false;
    }
  });
  dialog.replaceChildren(form);
  dialog.setAttribute("aria-labelledby", title.id);
  dialog.showModal();
  (before.find((each) => each.matches("input, select")) ?? area).focus();
  return area;
}

async function resend(task) {
  const whole = await fetch(`${base}/api/tasks/${task}/kwargs`);
  compose({
    heading: "Send again",
    prompt: "Send a new task with these arguments:",
    text: pretty(whole.ok ? await whole.text() : "{}"),
    path: `/api/tasks/${task}/resend`,
    body: (kwargs) => `{"kwargs": ${kwargs}}`,
  });
}

async function edit(button, refresh) {
  const id = button.dataset.edit, whole = await fetch(`${base}/api/tasks/${id}/kwargs`);
  const priority = element("input", { id: "compose-priority", type: "number", min: 1, max: 100, required: true, value: button.dataset.priority });
  compose({
    heading: "Edit this task",
    prompt: "Arguments as JSON:",
    text: pretty(whole.ok ? await whole.text() : "{}"),
    before: [element("label", { htmlFor: priority.id, textContent: "Priority, 1 is the highest" }), priority],
    path: `/api/tasks/${id}/edit`,
    body: (kwargs) => `{"kwargs": ${kwargs}, "priority": ${Number(priority.value)}}`,
    confirm: "Save",
    done: () => {
      toast("The task is changed.");
      refresh({ release: true });
    },
  });
}

// A new task: its name, and its required parameters to fill in.
async function create() {
  const { tasks } = await (await fetch(`${base}/api/definitions`)).json();
  const choice = element("select", { id: "compose-name" }, ...tasks.map(({ name }) => element("option", { value: name, textContent: name })));
  const template = () => {
    const needed = tasks.find(({ name }) => name === choice.value)?.parameters.filter(({ required }) => required) ?? [];
    return JSON.stringify(Object.fromEntries(needed.map(({ name }) => [name, null])), null, 2);
  };
  const area = compose({
    heading: "New task",
    prompt: "Arguments as JSON:",
    text: template(),
    before: [element("label", { htmlFor: choice.id, textContent: "Task" }), choice],
    path: "/api/tasks/send",
    body: (kwargs) => `{"name": ${JSON.stringify(choice.value)}, "kwargs": ${kwargs}}`,
  });
  choice.addEventListener("change", () => (area.value = template()));
}

export function task(refresh) {
  follow();
  document.getElementById("new-task")?.addEventListener("click", create);
  document.addEventListener("fresh", follow);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy], [data-copy-text], .fold, [data-resend], [data-edit]");
    if (!button) return;
    event.preventDefault();
    if (button.dataset.edit) edit(button, refresh);
    else if (button.dataset.resend) resend(button.dataset.resend);
    else if (button.classList.contains("fold")) fold(button);
    else copyFrom(button);
  });
}
