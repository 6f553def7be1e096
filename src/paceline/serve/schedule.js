// The page of a live schedule asks again every few seconds while it is seen, and can be paused.
(function () {
  "use strict";
  const EVERY = 2000, REST = 10000; // milliseconds
  const live = document.getElementById("live"), heard = document.getElementById("heard"), pause = document.getElementById("pause");
  let paused = false, touched = 0;
  document.documentElement.classList.add("scripted");
  pause.hidden = false;
  pause.addEventListener("click", function () {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    if (!paused) { refresh(); }
  });

  // What has the focus keeps it, and tables stay where they are.
  function show(html) {
    if (live.innerHTML === html) { return; }
    const boxes = function () { return [...live.querySelectorAll("figure, .scroll")]; };
    const before = boxes(), at = before.indexOf(document.activeElement);
    const moved = before.map(function (box) { return box.scrollLeft; });
    live.innerHTML = html;
    boxes().forEach(function (box, n) { box.scrollLeft = moved[n] || 0; });
    if (at >= 0 && boxes()[at]) { boxes()[at].focus({ preventScroll: true }); }
    const line = live.querySelector("[data-status]");
    const words = line ? line.dataset.status : live.textContent.trim();
    if (heard.textContent !== words) { heard.textContent = words; }
  }

  // While somebody asks the bars of a picture, it stays.
  function busy() { return live.querySelector(".picked") && Date.now() - touched < REST; }
  for (const kind of ["pointerover", "click", "keydown"]) {
    document.addEventListener(kind, function () { touched = Date.now(); });
  }

  async function refresh() {
    if (paused || document.hidden || busy()) { return; }
    try {
      const reply = await fetch(live.dataset.again);
      const html = await reply.text();
      if (!paused && !busy()) { show(html); }
    } catch (error) {
      show('<p class="problem" role="alert">The server does not answer: is paceline serve still running?</p>');
    }
  }

  setInterval(refresh, EVERY);
})();
