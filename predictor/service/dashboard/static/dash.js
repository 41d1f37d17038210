// Optional comfort: theme button, ages beside times, edges of wide tables, short URLs, filters after Back, copy
// buttons, progress.
// Pages work without it.
const root = document.documentElement;
const dark = () => getComputedStyle(root).colorScheme === "dark" ||
  (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);

for (const button of document.querySelectorAll("button.theme")) {
  const tell = () => { button.textContent = dark() ? "Light colors" : "Dark colors"; };
  tell();
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("accel-theme", root.dataset.theme);
    tell();
  });
}

// Not by scrollIntoView, because the keyboard would go on from there, past the link to the content.
const current = document.querySelector(".side nav [aria-current]");
if (current) {
  const strip = current.closest("nav");
  const [link, room] = [current, strip].map(box => box.getBoundingClientRect());
  strip.scrollLeft += (link.left + link.right - room.left - room.right) / 2;
}

const units = [["year", 31557600], ["month", 2629800], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
for (const time of document.querySelectorAll("time[datetime]")) {
  const seconds = (Date.parse(time.dateTime) - Date.now()) / 1000;
  const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= size) ?? ["second", 1];
  const age = words.format(Math.round(seconds / size), unit);
  if (time.parentElement.matches("footer *")) time.append(` UTC, ${age}`);
  else time.title = `UTC, ${age}`;
}

// A table that goes on beyond its right edge has a shadow there, because its scroll bar may be below the window.
for (const box of document.querySelectorAll(".scroll")) {
  const mark = () => box.classList.toggle("is-cut", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  box.addEventListener("scroll", mark);
  new ResizeObserver(mark).observe(box);
}

// Empty fields are left out of the URL, because they filter nothing.
for (const form of document.querySelectorAll("form[method=get]")) {
  form.addEventListener("formdata", ({ formData }) => {
    const filled = [...formData].filter(([, value]) => value);
    for (const name of [...formData.keys()]) formData.delete(name);
    for (const [name, value] of filled) formData.append(name, value);
  });
}

// A page that Back or Forward shows has the filters of its URL, because browsers bring back what was typed last.
addEventListener("pageshow", ({ persisted }) => {
  if (!persisted && performance.getEntriesByType("navigation")[0].type !== "back_forward") return;
  for (const form of document.querySelectorAll("form[method=get]")) form.reset();
});

for (const block of document.querySelectorAll(".command")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  block.append(button);
}

// Progress of the pipeline beside the service, and a link to what it has measured since this page was made.
const banner = document.querySelector(".pipeline");
const drawn = document.querySelector("footer code")?.title;
const follow = async (before) => {
  const answer = await fetch("/health").catch(() => null);
  if (!answer?.ok) return;
  const { pipeline, snapshot_id } = await answer.json();
  if (!pipeline && !before) return;
  banner.hidden = false;
  banner.querySelector("span").textContent = pipeline ? pipeline.message : "This host is measured";
  const reload = banner.querySelector("a");
  reload.href = location.href;
  reload.hidden = snapshot_id === drawn;
  if (pipeline?.state === "running") setTimeout(follow, 2000, pipeline);
};
if (drawn) follow();
