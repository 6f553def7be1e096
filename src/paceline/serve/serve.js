// The form asks again after each change, and keeps the history. It works without all of it.
(function () {
  "use strict";
  const form = document.getElementById("controls"), answer = document.getElementById("answer");
  const problem = document.getElementById("problem"), status = document.getElementById("status");
  const TYPING = 450; // milliseconds of rest before a text that is being typed is asked about
  const PAUSE = 350; // milliseconds of rest before the slower search is asked for
  let wanted = null, busy = false, typing = 0, timer = 0, searching = null, changed = "", editing = null, format = "";
  document.documentElement.classList.add("scripted");

  function part(name) { return document.getElementById(name); }
  function query() {
    const pairs = [...new FormData(form)].filter(function (pair) { return pair[1].trim() !== ""; });
    return new URLSearchParams(pairs).toString();
  }
  function fill(text) {
    const values = new URLSearchParams(text);
    for (const control of form.elements) {
      if (!control.name) { continue; }
      const value = values.get(control.name) || "";
      if (control.tagName === "SELECT" && ![...control.options].some(function (o) { return o.value === value; })) {
        control.add(new Option(value, value));
      }
      control.value = value;
      const fold = control.closest("details");
      if (fold && value) { fold.open = true; }
    }
    sliders.forEach(follow);
  }
  function remember(asked, how) {
    if ("?" + asked === location.search || how === "stay") { return; }
    history[how === "replace" ? "replaceState" : "pushState"](null, "", "?" + asked);
  }

  // The newest state wins: while one answer is on its way, only the last of the others is asked for after it.
  async function refresh(how, after) {
    clearTimeout(typing);
    clearTimeout(timer);
    wanted = query();
    remember(wanted, how);
    if (busy) { return; }
    busy = true;
    answer.setAttribute("aria-busy", "true");
    let good = false;
    while (wanted !== null) {
      const asked = wanted;
      wanted = null;
      try {
        const reply = await fetch("answer?" + asked), html = await reply.text();
        good = reply.ok;
        if (wanted === null) { if (good) { show(html); } else { refuse(html); } }
      } catch (error) {
        good = false;
        say("The server does not answer: is paceline serve still running?");
      }
    }
    busy = false;
    answer.setAttribute("aria-busy", "false");
    if (good) { timer = setTimeout(advise, PAUSE); if (after) { after(); } }
  }

  function show(html) {
    const open = new Map([...answer.querySelectorAll("details[id]")].map(function (item) { return [item.id, item.open]; }));
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    for (const name of ["advice", "search"]) { // kept until the new search is done
      const before = part(name);
      if (before && before.parentElement) { fresh.content.getElementById(name).replaceWith(before); }
    }
    answer.replaceChildren(fresh.content);
    for (const item of answer.querySelectorAll("details[id]")) {
      if (open.has(item.id)) { item.open = open.get(item.id); }
    }
    clear();
    dressed();
    sliders.forEach(follow);
    status.textContent = state().status;
  }
  function state() {
    const line = answer.querySelector("[data-status]");
    return line ? line.dataset : { status: "", speed: "", transport: "" };
  }

  // A mistake is shown at its control: the one that the server names, else the one that was changed last.
  function refuse(html) {
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    const said = fresh.content.querySelector(".problem"), text = said ? said.textContent : html;
    const control = form.elements[(said && said.dataset.option) || changed];
    if (!control || !part(control.name + "-wrong")) { say(text); return; }
    clear();
    const note = part(control.name + "-wrong"), fold = control.closest("details");
    note.textContent = text;
    note.hidden = false;
    if (fold) { fold.open = true; }
    control.setAttribute("aria-invalid", "true");
    control.setAttribute("aria-describedby", note.id);
    outdated();
    status.textContent = text;
  }
  function say(text) {
    clear();
    const line = document.createElement("p");
    line.className = "problem";
    line.setAttribute("role", "alert");
    line.textContent = text;
    problem.replaceChildren(line);
    outdated();
  }
  function outdated() {
    if (!answer.querySelector("[data-status]")) { return; }
    const line = document.createElement("p");
    line.className = "before";
    line.textContent = "The answer below is that of the last choices without a mistake.";
    problem.append(line);
    answer.classList.add("stale");
  }
  function clear() {
    problem.replaceChildren();
    answer.classList.remove("stale");
    for (const note of form.querySelectorAll(".wrong:not([hidden])")) { note.hidden = true; note.textContent = ""; }
    for (const control of form.querySelectorAll("[aria-invalid]")) {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-describedby");
    }
  }

  async function advise() {
    if (searching) { searching.abort(); }
    searching = new AbortController();
    const advice = part("advice"), search = part("search");
    for (const item of [advice, search]) { item.setAttribute("aria-busy", "true"); }
    if (!search.querySelector("section")) { search.textContent = "Searching the best configuration…"; }
    try {
      const reply = await fetch("search?" + query(), { signal: searching.signal }), html = await reply.text();
      if (reply.status === 204) { return; }
      search.innerHTML = html;
      advice.replaceChildren(...search.querySelectorAll(".advice"));
    } catch (error) {
      if (error.name === "AbortError") { return; }
      search.textContent = "The search did not end.";
    }
    for (const item of [advice, search]) { item.setAttribute("aria-busy", "false"); }
    dressed();
  }

  function dressed() {
    for (const button of answer.querySelectorAll("button.copy")) { button.hidden = !navigator.clipboard; }
    for (const button of answer.querySelectorAll("button.png")) { button.hidden = false; }
    const menu = part("format");
    if (!menu) { return; }
    part("menu").hidden = false;
    if (format) { menu.value = format; }
    choose();
  }
  function choose() {
    format = part("format").value;
    for (const item of answer.querySelectorAll(".format")) {
      item.open = item.dataset.title === format;
      item.hidden = !item.open;
    }
  }

  const sliders = [...form.querySelectorAll("input[type=range]")];
  function nearest(stops, value) {
    const exact = stops.indexOf(value);
    if (exact >= 0) { return exact; }
    const amount = parseFloat(value) || 0;
    const below = stops.filter(function (stop) { return parseFloat(stop) <= amount; }).length;
    return Math.max(0, below - 1);
  }
  function follow(slider) {
    const control = form.elements[slider.dataset.for], value = control.value || control.placeholder;
    const known = control.name === "network" && !bare(value) ? state().speed : value;
    slider.value = nearest(slider.dataset.stops.split(" "), known);
    slider.setAttribute("aria-valuetext", value || "not set");
  }

  // A speed has the transport of the control; a link has its own. Each keeps what the other says.
  const network = form.elements.network, transport = form.elements.transport;
  function bare(text) { return /^\s*[\d.,]+\s*[KMGT](b\/s|bps|bit\/s|bE)?\s*$/i.test(text); }
  function keepTransport() {
    if (!transport.value && state().transport) { transport.value = state().transport; }
  }

  for (const slider of sliders) {
    slider.hidden = false;
    follow(slider);
    slider.addEventListener("input", function () {
      const value = slider.dataset.stops.split(" ")[Number(slider.value)];
      if (slider.dataset.for === "network") { keepTransport(); }
      form.elements[slider.dataset.for].value = value;
      slider.setAttribute("aria-valuetext", value);
    });
  }
  function settle(control) {
    if (control === network) { if (bare(network.value)) { keepTransport(); } else { transport.value = ""; } }
    if (control === transport && transport.value && !bare(network.value)) { network.value = state().speed || network.value; }
    for (const slider of sliders) { if (slider.dataset.for === control.name) { follow(slider); } }
  }
  form.addEventListener("input", function (event) {
    const control = event.target, how = editing === control ? "replace" : "push";
    changed = control.dataset.for || control.name;
    editing = control;
    clearTimeout(typing);
    if (control.type === "range" || control.tagName === "SELECT") { settle(control); refresh(how); return; }
    typing = setTimeout(function () { typing = 0; settle(control); refresh(how); }, TYPING);
  });
  form.addEventListener("change", function (event) {
    if (typing) { clearTimeout(typing); typing = 0; settle(event.target); refresh("push"); }
    editing = null;
  });
  form.addEventListener("submit", function (event) { event.preventDefault(); refresh("push"); });
  window.addEventListener("popstate", function () { editing = null; fill(location.search); refresh("stay"); });

  document.addEventListener("change", function (event) { if (event.target.id === "format") { choose(); } });
  document.addEventListener("click", async function (event) {
    const link = event.target.closest("a.apply");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      fill(new URL(link.href).search);
      refresh("push", function () { part("verdict").focus(); });
      return;
    }
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
    changed = "workload";
    if (!reply.ok) { refuse(await reply.text()); return; }
    form.elements.workload.value = (await reply.json()).workload;
    refresh("push");
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

  // Paper shows the sources that the screen folds.
  window.addEventListener("beforeprint", function () { const rests = part("rests"); if (rests) { rests.open = true; } });

  dressed();
  if (answer.querySelector("[data-status]")) { advise(); }
})();
