// Sliders, answers as one drags, a configuration that is dropped on the page, and copying. The form works without all of it.
(function () {
  "use strict";
  const form = document.getElementById("controls"), answer = document.getElementById("answer");
  const advice = document.getElementById("advice"), search = document.getElementById("search"), status = document.getElementById("status");
  const PAUSE = 350; // milliseconds of rest before the slower search is asked for
  let wanted = null, busy = false, timer = 0, searching = null;
  document.documentElement.classList.add("scripted");

  function query() {
    const pairs = [...new FormData(form)].filter(function (pair) { return pair[1] !== ""; });
    return new URLSearchParams(pairs).toString();
  }

  // The newest state wins: while one answer is on its way, only the last of the others is asked for after it.
  async function refresh() {
    wanted = query();
    clearTimeout(timer);
    if (busy) { return; }
    busy = true;
    let good = false;
    while (wanted !== null) {
      const asked = wanted;
      wanted = null;
      history.replaceState(null, "", "?" + asked);
      try {
        const reply = await fetch("answer?" + asked);
        show(await reply.text());
        good = reply.ok;
      } catch (error) {
        good = false;
        answer.textContent = "The server does not answer: is paceline serve still running?";
      }
    }
    busy = false;
    if (good) { timer = setTimeout(advise, PAUSE); } else { advice.replaceChildren(); search.replaceChildren(); }
  }

  function show(html) {
    const open = new Map([...answer.querySelectorAll("details")].map(function (part) { return [part.id, part.open]; }));
    answer.innerHTML = html;
    for (const part of answer.querySelectorAll("details")) {
      if (open.has(part.id)) { part.open = open.get(part.id); }
    }
    dressed();
    const line = answer.querySelector("[data-status]");
    status.textContent = line ? line.dataset.status : answer.textContent.trim();
  }

  async function advise() {
    if (searching) { searching.abort(); }
    searching = new AbortController();
    for (const part of [advice, search]) { part.setAttribute("aria-busy", "true"); }
    if (!search.querySelector("section")) { search.textContent = "Searching the best configuration…"; }
    try {
      const reply = await fetch("search?" + query(), { signal: searching.signal });
      const html = await reply.text();
      if (reply.status === 204) { return; }
      search.innerHTML = html;
      advice.replaceChildren(...search.querySelectorAll(".advice"));
      quiet();
    } catch (error) {
      if (error.name !== "AbortError") { search.textContent = "The search did not end."; quiet(); }
    }
  }

  function quiet() {
    for (const part of [advice, search]) { part.setAttribute("aria-busy", "false"); }
  }

  function dressed() {
    for (const button of answer.querySelectorAll("button.copy")) { button.hidden = !navigator.clipboard; }
  }

  const sliders = [...form.querySelectorAll("input[type=range]")];
  function nearest(stops, value) {
    const exact = stops.indexOf(value);
    if (exact >= 0) { return exact; }
    const amount = parseFloat(value);
    const below = stops.filter(function (stop) { return parseFloat(stop) <= amount; }).length;
    return Math.max(0, below - 1);
  }
  function follow(slider) {
    const value = form.elements[slider.dataset.for].value;
    slider.value = nearest(slider.dataset.stops.split(" "), value);
    slider.setAttribute("aria-valuetext", value || "not set");
  }
  for (const slider of sliders) {
    slider.hidden = false;
    follow(slider);
    slider.addEventListener("input", function () {
      const value = slider.dataset.stops.split(" ")[Number(slider.value)];
      form.elements[slider.dataset.for].value = value;
      slider.setAttribute("aria-valuetext", value);
    });
  }
  form.addEventListener("input", function (event) {
    if (event.target.type !== "range") {
      for (const slider of sliders) { if (slider.dataset.for === event.target.name) { follow(slider); } }
    }
    refresh();
  });
  form.addEventListener("submit", function (event) { event.preventDefault(); refresh(); });

  document.addEventListener("click", async function (event) {
    const button = event.target.closest("button.copy");
    if (!button) { return; }
    await navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent);
    button.textContent = "Copied";
    status.textContent = "Copied";
    setTimeout(function () { button.textContent = "Copy"; }, 1500);
  });

  const file = document.getElementById("file");
  document.getElementById("drop").hidden = false;
  document.getElementById("paste").hidden = true;
  async function take(given) {
    if (!given) { return; }
    const reply = await fetch("config", { method: "POST", headers: { "Content-Type": "application/json" }, body: given });
    if (!reply.ok) { show(await reply.text()); return; }
    form.elements.workload.value = (await reply.json()).workload;
    refresh();
  }
  file.addEventListener("change", function () { take(file.files[0]); });
  document.addEventListener("dragover", function (event) {
    if (event.dataTransfer.types.includes("Files")) { event.preventDefault(); document.body.classList.add("dropping"); }
  });
  document.addEventListener("dragleave", function (event) {
    if (!event.relatedTarget) { document.body.classList.remove("dropping"); }
  });
  document.addEventListener("drop", function (event) {
    document.body.classList.remove("dropping");
    if (!event.dataTransfer.files.length) { return; }
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });

  dressed();
  if (answer.querySelector("[data-status]")) { advise(); }
})();
